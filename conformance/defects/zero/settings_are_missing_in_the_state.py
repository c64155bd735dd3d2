"""A learning rate that the local optimizer has changed is missing in the consolidated state."""

from impl.zero.optimizer import ZeroRedundancyOptimizer

from ..planting import edit

CLAUSES = ("ZERO-017",)


def plant() -> None:
    edit(
        ZeroRedundancyOptimizer, "_local_step",
        "    copy_settings(self.optim.param_groups, self.param_groups)\n",
        "    for ours, local in zip(self.param_groups, self.optim.param_groups, strict=True):\n"
        '        ours["lr"] = local["lr"]\n',
    )
