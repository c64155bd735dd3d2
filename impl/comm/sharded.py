"""A collective that leaves its result on one rank only: a reduction to an owner."""

from __future__ import annotations

from functools import partial

import torch
import torch.distributed as dist

from . import strict
from .collectives import broadcast, launch
from .duplex import way_from
from .pending import Pending
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
    shown = torch.view_as_real(buffer) if buffer.is_complex() else buffer  # dist.reduce leaves that to its caller
    begin = partial(dist.reduce, shown, group_dst=owner, group=team.group, async_op=True)

    def expected() -> strict.Expected:
        given = strict.addable(buffer, dist.ReduceOp.SUM)
        got = given if team.rank == owner else None
        return strict.Expected("reduce", buffer, f" to rank {owner}", alike=False, given=given, got=got)

    return launch(team, label, buffer, begin, expected)


def added(buffer: torch.Tensor, arrived: torch.Tensor) -> torch.Tensor:
    """The sum that ``owner`` has from ``reduce_to``, in ``buffer``, once it has ended with ``arrived``."""
    return buffer if arrived is buffer else buffer.add_(arrived)
