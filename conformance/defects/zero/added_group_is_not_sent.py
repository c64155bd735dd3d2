"""The transfers are not made anew when a group has been added."""

from impl.zero.optimizer import ZeroRedundancyOptimizer

from ..planting import edit

CLAUSES = ("ZERO-014",)


def plant() -> None:
    edit(
        ZeroRedundancyOptimizer, "add_param_group",
        "    self._look_at_trainability()\n    self._publisher = None\n",
        "    kept = self._publisher\n    self._look_at_trainability()\n    self._publisher = kept\n",
    )
