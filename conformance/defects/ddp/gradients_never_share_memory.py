"""gradient_as_bucket_view is accepted and has no effect."""

from impl.ddp import DistributedDataParallel

from ..planting import edit

CLAUSES = ("DDP-117", "DDP-118")


def plant() -> None:
    edit(
        DistributedDataParallel,
        "_build_reducer",
        "as_view=self.gradient_as_bucket_view and",
        "as_view=self.static_graph and",
    )
