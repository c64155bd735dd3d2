"""Backwards under no_sync are reduced and stepped like all others."""

from impl.ddp.reducer import Reducer

from ..planting import edit

CLAUSES = ("HOOK-046",)


def plant() -> None:
    edit(Reducer, "begin", "if not ticket.sync or self.phase", "if self.phase")
