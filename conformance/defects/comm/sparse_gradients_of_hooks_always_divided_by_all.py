"""Hooks divide sparse gradients by the number of all ranks where the active ones were asked for."""

from impl.ddp.hooks import reduction

from ..planting import edit

CLAUSES = ("DDPJ-014",)


def plant() -> None:
    edit(reduction, "mean", "sum_sparse(team, tensor, label) / divisor", "sum_sparse(team, tensor, label) / team.size")
