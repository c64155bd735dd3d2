"""Adding a group deals all parameters out anew, so some change their owner."""

from impl.zero.optimizer import ZeroRedundancyOptimizer

from ..planting import edit

CLAUSES = ("ZERO-014",)


def plant() -> None:
    edit(
        ZeroRedundancyOptimizer, "add_param_group",
        'self._plan.extended([parameter.numel() for parameter in added["params"]])',
        "ShardPlan.greedy([parameter.numel() for parameter in self._parameters()], self._team.size)",
    )
