"""Further keywords of step() are passed on only where there is no closure."""

from impl.zero.optimizer import ZeroRedundancyOptimizer

from ..planting import edit

CLAUSES = ("ZERO-010",)


def plant() -> None:
    edit(
        ZeroRedundancyOptimizer, "_local_step",
        "self.optim.step(closure=closure, **kwargs)",
        "self.optim.step(closure=closure)",
    )
