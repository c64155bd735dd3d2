"""Each rank gives itself the largest parameter, so the ranks disagree about the owners."""

from impl.zero.optimizer import ZeroRedundancyOptimizer

from ..planting import edit

CLAUSES = ("ZERO-007", "ZERO-008")


def plant() -> None:
    edit(
        ZeroRedundancyOptimizer, "__init__",
        "    if overlap_with_ddp:\n",
        "    rolled = tuple((owner + team.rank) % team.size for owner in self._plan.owners)\n"
        "    self._plan = ShardPlan(team.size, self._plan.numels, rolled)\n"
        "    if overlap_with_ddp:\n",
    )
