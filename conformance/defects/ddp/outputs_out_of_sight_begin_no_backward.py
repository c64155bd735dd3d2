"""Once arrivals are noted bucket by bucket, outputs in which no tensor was found are taken to announce themselves."""

from impl.ddp.reducer import Reducer

from ..planting import edit

CLAUSES = ("DDP-037",)


def plant() -> None:
    edit(Reducer, "admit", "not (ticket.announced and ticket.context is None)", "ticket.context is not None")
