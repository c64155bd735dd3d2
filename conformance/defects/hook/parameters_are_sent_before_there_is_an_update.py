"""Until the buckets are rebuilt nothing is stepped, but the parameters are sent all the same."""

from impl.overlap.session import OverlapSession

from ..planting import edit

CLAUSES = ("HOOK-010",)


def plant() -> None:
    edit(
        OverlapSession, "_step_and_send", "if flight.gradients:", "if flight.gradients and ddp.reducer.facts.rebuilt:"
    )
