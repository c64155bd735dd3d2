"""The source of a broadcast is given to torch as a group rank, which takes it for a global one."""

from typing import Any

import torch
import torch.distributed as dist

from impl.comm import collectives
from impl.comm.pending import Pending
from impl.comm.ranks import GroupRank, Team

from ..planting import swap

CLAUSES = ("DDP-025", "DDP-080", "DDPJ-022", "ZERO-008", "HOOK-044")
WORLDS = (3,)


def plant() -> None:
    def broadcast(team: Team, buffer: torch.Tensor, source: GroupRank, label: str) -> Any:
        return Pending(label, buffer, dist.broadcast(buffer, src=int(source), group=team.group, async_op=True))

    swap(collectives, "broadcast", broadcast)
