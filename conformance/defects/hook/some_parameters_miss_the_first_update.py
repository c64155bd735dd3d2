"""The first update is made with the last bucket only."""

from impl.overlap.session import OverlapSession

from ..planting import edit

CLAUSES = ("HOOK-017", "HOOK-018")


def plant() -> None:
    edit(
        OverlapSession, "_step_and_send",
        "if flight.gradients:",
        "if flight.gradients and (ddp.reducer.facts.reductions > 1 or flight is self._flights[-1]):",
    )
