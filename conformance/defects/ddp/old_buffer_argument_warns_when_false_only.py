"""broadcast_buffers=True is accepted without a word; only False warns."""

from impl.ddp import options

from ..planting import edit

CLAUSES = ("DDP-016",)


def plant() -> None:
    edit(options, "warn_of_old_arguments", "if broadcast_buffers is None:", "if broadcast_buffers is not False:")
