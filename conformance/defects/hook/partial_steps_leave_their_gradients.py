"""After a partial step a parameter goes on showing the gradient that it was stepped with, on joined ranks too."""

from impl.zero.overlapping import PartialSteps

from ..planting import edit

CLAUSES = ("DDPJ-010",)


def plant() -> None:
    edit(PartialSteps, "step_pairs", "            parameter.grad = before", "            pass")
