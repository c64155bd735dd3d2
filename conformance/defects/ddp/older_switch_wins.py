"""Of the two switches for buffers the older one wins."""

from impl.ddp import options

from ..planting import edit

CLAUSES = ("DDP-083",)


def plant() -> None:
    edit(
        options,
        "syncs_buffers_in_forward",
        "if forward_sync is not None:",
        "if forward_sync is not None and broadcast_buffers is None:",
    )
