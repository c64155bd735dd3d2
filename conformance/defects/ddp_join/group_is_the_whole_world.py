"""DDP names the default group as its join group, whatever group it averages over."""

import torch.distributed as dist

from impl.ddp.uneven import UnevenInputs

from ..planting import swap

CLAUSES = ("DDPJ-001", "DDPJ-022")
WORLDS = (3,)


def plant() -> None:
    swap(UnevenInputs, "join_process_group", lambda self: dist.group.WORLD)
