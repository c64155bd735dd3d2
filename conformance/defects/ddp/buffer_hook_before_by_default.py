"""A buffer hook without a location runs before the forward."""

from impl.ddp import DistributedDataParallel

from ..planting import edit

CLAUSES = ("DDP-091",)


def plant() -> None:
    edit(
        DistributedDataParallel,
        "_register_buffer_comm_hook",
        "= _BufferCommHookLocation.POST_FORWARD",
        "= _BufferCommHookLocation.PRE_FORWARD",
    )
