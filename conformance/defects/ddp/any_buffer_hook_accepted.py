"""A buffer hook that cannot be called is found out in the first forward."""

from impl.ddp import DistributedDataParallel

from ..planting import edit

CLAUSES = ("DDP-092",)


def plant() -> None:
    edit(DistributedDataParallel, "_register_buffer_comm_hook", "assert callable(hook),", "assert hook is not None,")
