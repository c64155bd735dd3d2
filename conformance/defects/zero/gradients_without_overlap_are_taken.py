"""Gradients that are given to a local step without overlap are ignored."""

from impl.zero.optimizer import ZeroRedundancyOptimizer

from ..planting import edit

CLAUSES = ("ZERO-028",)


def plant() -> None:
    edit(
        ZeroRedundancyOptimizer, "_local_step",
        "if gradients is not None:",
        "if gradients is not None and self._partial_steps:",
    )
