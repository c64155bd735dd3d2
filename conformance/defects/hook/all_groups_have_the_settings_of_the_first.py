"""In overlap mode every parameter is stepped with the settings of the first group."""

from impl.zero.overlapping import PartialSteps

from ..planting import edit

CLAUSES = ("HOOK-024", "ZERO-026")


def plant() -> None:
    edit(PartialSteps, "step_pairs", "shown[self._group_of[id(parameter)]]", "shown[0]")
