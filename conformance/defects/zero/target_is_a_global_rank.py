"""The target of a consolidation is taken for a global rank."""

from impl.zero.optimizer import ZeroRedundancyOptimizer

from ..planting import edit

CLAUSES = ("ZERO-016",)
WORLDS = (3,)


def plant() -> None:
    edit(
        ZeroRedundancyOptimizer, "consolidate_state_dict",
        "self._consolidate(GroupRank(to))",
        "self._consolidate(GroupRank([self._team.global_rank(rank) for rank in self._team.members].index(to)))",
    )
