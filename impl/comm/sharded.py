"""A collective that leaves its result on one rank only: a reduction to an owner."""

from __future__ import annotations

import torch
import torch.distributed as dist

from . import strict
from .collectives import broadcast
from .duplex import way_from
from .pending import Pending, fail_to_start
from .ranks import GroupRank, Team


def reduce_to(team: Team, buffer: torch.Tensor, owner: GroupRank, label: str) -> Pending:
    """Start summing ``buffer`` over the team; only ``owner`` gets the sum, elsewhere the content is lost.

    The owner makes the sum by ``added(buffer, pending.wait())``.
    """
    other = GroupRank(1 - owner)  # where there are two
    way = way_from(other, team, buffer.device)
    if way is not team:  # Gloo takes as long to sum for one as for all
        arriving = torch.empty_like(buffer) if team.rank == owner else buffer
        return broadcast(way, arriving, other, label)
    if team.is_strict:
        gives = strict.addable(buffer, dist.ReduceOp.SUM)
        strict.agree(team, "reduce", label, buffer, f" to rank {owner}", gives)
    shown = torch.view_as_real(buffer) if buffer.is_complex() else buffer  # dist.reduce leaves that to its caller
    try:
        work = dist.reduce(shown, group_dst=owner, group=team.group, async_op=True)
    except dist.DistError as error:
        fail_to_start(error, team, label)
    pending = Pending(label, buffer, work, team)
    if not team.is_strict:
        return pending
    return strict.confirmed(team, pending, alike=False, got=gives if team.rank == owner else None)


def added(buffer: torch.Tensor, arrived: torch.Tensor) -> torch.Tensor:
    """The sum that ``owner`` has from ``reduce_to``, in ``buffer``, once it has ended with ``arrived``."""
    return buffer if arrived is buffer else buffer.add_(arrived)
