"""A rank to which an earlier state was consolidated goes on giving that one after a consolidation to another rank."""

from impl.zero.optimizer import ZeroRedundancyOptimizer

from ..planting import edit

CLAUSES = ("ZERO-015",)


def plant() -> None:
    edit(
        ZeroRedundancyOptimizer, "_consolidate",
        "    self._consolidated = None  # frees the last one before the next is gathered\n"
        "    self._consolidated = checkpoint.gather_states(self._team, self._own_states(), to, self._device)\n",
        "    found = checkpoint.gather_states(self._team, self._own_states(), to, self._device)\n"
        "    self._consolidated = self._consolidated if found is None else found\n",
    )
