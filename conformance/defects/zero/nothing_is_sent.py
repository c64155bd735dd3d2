"""Each rank steps its own parameters and sends them to nobody."""

from impl.zero.optimizer import ZeroRedundancyOptimizer

from ..planting import edit

CLAUSES = ("ZERO-007", "ZERO-008")


def plant() -> None:
    edit(ZeroRedundancyOptimizer, "step", "    self._sync_params()\n", "")
