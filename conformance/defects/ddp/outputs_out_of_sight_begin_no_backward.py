"""Outputs in which no tensor was found are taken to announce their backward themselves, and are waited for in vain."""

from impl.ddp.reducer import Reducer
from impl.ddp.ticket import Forwards

from ..planting import edit

CLAUSES = ("DDP-037",)


def plant() -> None:
    edit(Reducer, "admit", "not (ticket.announced and ticket.context is None)", "ticket.context is not None")
    edit(Forwards, "waits_for_another", "ticket is None or", "ticket is None or not ticket.announced or")
