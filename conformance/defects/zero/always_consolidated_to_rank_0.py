"""The state is consolidated to rank 0, whatever target is asked for."""

from impl.zero.optimizer import ZeroRedundancyOptimizer

from ..planting import edit

CLAUSES = ("ZERO-015", "ZERO-016")


def plant() -> None:
    edit(
        ZeroRedundancyOptimizer, "consolidate_state_dict",
        "self._consolidate(GroupRank(to))",
        "self._consolidate(GroupRank(0))",
    )
