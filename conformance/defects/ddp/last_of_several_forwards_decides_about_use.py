"""Of several forwards before one backward the last alone says what is unused."""

from impl.ddp.ticket import Forwards

from ..planting import edit

CLAUSES = ("DDP-099",)


def plant() -> None:
    edit(Forwards, "admit", "ticket.unused &= former.unused", "pass")
