"""The warning about needless detection comes in every iteration."""

from impl.ddp import unused

from ..planting import edit

CLAUSES = ("DDP-104",)


def plant() -> None:
    edit(unused, "tell_needless", "    _told_needless = True\n", "")
