"""The retired check_reduction is accepted without a word."""

from impl.ddp import options

from ..planting import edit

CLAUSES = ("DDP-015",)


def plant() -> None:
    edit(options, "warn_of_old_arguments", "if check_reduction:", "if check_reduction is None:")
