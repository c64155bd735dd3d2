"""Further keywords of step() do not reach the local optimizer."""

from impl.zero.optimizer import ZeroRedundancyOptimizer

from ..planting import edit

CLAUSES = ("ZERO-010",)


def plant() -> None:
    edit(
        ZeroRedundancyOptimizer, "step",
        "self._local_step(closure=closure, **kwargs)",
        "self._local_step(closure=closure)",
    )
