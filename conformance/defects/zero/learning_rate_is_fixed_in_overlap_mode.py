"""In overlap mode the local optimizer keeps the settings that it was built with."""

from impl.zero.overlapping import PartialSteps

from ..planting import edit

CLAUSES = ("ZERO-031",)


def plant() -> None:
    edit(PartialSteps, "begin", "    copy_settings(self._zero.param_groups, optim.param_groups)\n", "")
