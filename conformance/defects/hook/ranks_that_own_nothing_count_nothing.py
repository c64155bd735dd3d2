"""A rank that owns no parameter goes on showing the settings with which the optimizer began."""

from impl.zero.overlapping import PartialSteps

from ..planting import edit

CLAUSES = ("HOOK-018",)


def plant() -> None:
    edit(
        PartialSteps,
        "end",
        "    if not self._stepped:\n        self.step_pairs([], [])",
        "    if not self._stepped:\n        pass",
    )
