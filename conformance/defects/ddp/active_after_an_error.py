"""The active model is not forgotten when its forward raises."""

from impl.ddp import DistributedDataParallel

from ..planting import edit

CLAUSES = ("DDP-042",)


def plant() -> None:
    edit(
        DistributedDataParallel,
        "_inside_ddp_forward",
        "try:\n        yield\n    finally:\n        DistributedDataParallel",
        "yield\n    if True:\n        DistributedDataParallel",
    )
