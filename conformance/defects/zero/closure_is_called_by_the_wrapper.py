"""The closure is called before the local step instead of being passed on to it."""

from impl.zero.optimizer import ZeroRedundancyOptimizer

from ..planting import edit

CLAUSES = ("ZERO-010",)


def plant() -> None:
    edit(
        ZeroRedundancyOptimizer, "_local_step",
        "loss = self.optim.step(**kwargs) if closure is None else self.optim.step(closure=closure, **kwargs)",
        "loss = (closure() if closure is not None else None, self.optim.step(**kwargs))[0]",
    )
