"""Parameter by parameter, gradients are divided by the size of the world and not by that of the group."""

import impl.ddp.per_parameter

from ..planting import edit

CLAUSES = ("DDP-167",)


def plant() -> None:
    edit(impl.ddp.per_parameter.PerParameterReduction, "reduce", "team.size)", "torch.distributed.get_world_size())")
