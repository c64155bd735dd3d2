"""An optimizer that cannot step a single parameter is refused with a TypeError."""

from impl.ddp.hooks.optimizer_overlap_hooks import _OptimizerHookState

from ..planting import edit

CLAUSES = ("COMM-030",)


def plant() -> None:
    edit(_OptimizerHookState, "__init__", "raise ValueError(", "raise TypeError(")
