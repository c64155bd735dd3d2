"""gradient_as_bucket_view is on unless it is switched off."""

from impl.ddp import DistributedDataParallel

from ..planting import edit

CLAUSES = ("DDP-002",)


def plant() -> None:
    edit(
        DistributedDataParallel,
        "__init__",
        "gradient_as_bucket_view: bool = False",
        "gradient_as_bucket_view: bool = True",
    )
