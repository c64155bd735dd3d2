"""Hooks of eight bits divide by the number of all ranks where the active ones were asked for."""

from impl.ddp.hooks import quantization_hooks

from ..planting import edit

CLAUSES = ("DDPJ-014",)


def plant() -> None:
    edit(quantization_hooks, "_gather_and_average", "divisor_of(team, bucket)", "team.size")
