"""Under mixed precision, too, gradients become views of buckets, whose dtype is another one."""

from impl.ddp import DistributedDataParallel

from ..planting import edit

CLAUSES = ("DDP-136",)


def plant() -> None:
    edit(
        DistributedDataParallel,
        "_build_reducer",
        "as_view=self.gradient_as_bucket_view and self._mixed_precision_run is None",
        "as_view=self.gradient_as_bucket_view",
    )
