"""A collective that leaves its result on one rank only: a reduction to an owner."""

from __future__ import annotations

import torch
import torch.distributed as dist

from . import strict, trace
from .pending import Pending
from .ranks import GroupRank, Team


def reduce_to(team: Team, buffer: torch.Tensor, owner: GroupRank, label: str) -> Pending:
    """Start summing ``buffer`` over the team; only ``owner`` gets the sum, elsewhere the content is lost."""
    if strict.enabled:
        strict.agree(team, "reduce", label, buffer, f" to rank {owner}")
    trace.note(label)
    work = dist.reduce(buffer, group_dst=owner, group=team.group, async_op=True)
    pending = Pending(label, buffer, work, team)
    return strict.started(team, pending, alike=False) if strict.enabled else pending
