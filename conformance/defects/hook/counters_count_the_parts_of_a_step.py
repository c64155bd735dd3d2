"""What an optimizer counts in attributes of its own is counted once for each part of a step."""

from impl.zero.overlapping import PartialSteps

from ..planting import edit

CLAUSES = ("HOOK-018",)


def plant() -> None:
    edit(PartialSteps, "_put_back", "    vars(self._optim).update(counters)\n", "")
