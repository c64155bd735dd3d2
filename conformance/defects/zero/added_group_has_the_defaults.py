"""An added group is stepped with the defaults instead of its own settings."""

from impl.zero.optimizer import ZeroRedundancyOptimizer

from ..planting import edit

CLAUSES = ("ZERO-014",)


def plant() -> None:
    edit(
        ZeroRedundancyOptimizer, "add_param_group",
        "    super().add_param_group(group)\n",
        '    super().add_param_group({"params": group["params"]})\n',
    )
