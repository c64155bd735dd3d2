"""The forward appears in profiles under the name of the wrapped module."""

from impl.ddp import DistributedDataParallel

from ..planting import edit

CLAUSES = ("DDP-044",)


def plant() -> None:
    edit(
        DistributedDataParallel,
        "forward",
        '"DistributedDataParallel.forward"',
        'f"{type(self.module).__name__}.forward"',
    )
