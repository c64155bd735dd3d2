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
        gives = strict.addable(buffer, dist.ReduceOp.SUM)
        strict.agree(team, "reduce", label, buffer, f" to rank {owner}", gives)
    trace.note(label)
    shown = torch.view_as_real(buffer) if buffer.is_complex() else buffer  # dist.reduce leaves that to its caller
    work = dist.reduce(shown, group_dst=owner, group=team.group, async_op=True)
    pending = Pending(label, buffer, work, team)
    if not strict.enabled:
        return pending
    return strict.confirmed(team, pending, alike=False, got=gives if team.rank == owner else None)
