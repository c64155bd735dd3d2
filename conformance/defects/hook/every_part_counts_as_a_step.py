"""What an optimizer counts outside of its parameters' states goes on with every bucket instead of every iteration."""

from impl.zero.overlapping import PartialSteps

from ..planting import edit

CLAUSES = ("ZERO-005",)


def plant() -> None:
    edit(PartialSteps, "step_pairs", "    if self._stepped:\n        self._put_back()\n", "")
