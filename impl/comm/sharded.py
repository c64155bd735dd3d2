"""Collectives that leave a result on one rank only: a reduction to an owner, and a message from one rank to another."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from . import trace
from .pending import Pending
from .ranks import GroupRank, Team


def reduce_to(team: Team, buffer: torch.Tensor, owner: GroupRank, label: str) -> Pending:
    """Start summing ``buffer`` over the team; only ``owner`` gets the sum, elsewhere the content is lost."""
    trace.note(label)
    work = dist.reduce(buffer, dst=team.global_rank(owner), group=team.group, async_op=True)
    return Pending(label, buffer, work)


def reduce_scatter(team: Team, part: torch.Tensor, whole: torch.Tensor, label: str) -> Pending:
    """Start summing ``whole`` (``team.size`` equal parts in rank order) over the team; each rank gets its own part."""
    trace.note(label)
    # newer torch calls the same operation reduce_scatter_single and warns about the old name
    start: Any = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    return Pending(label, part, start(part, whole, group=team.group, async_op=True))


def send(team: Team, buffer: torch.Tensor, to: GroupRank, label: str) -> Pending:
    """Start sending ``buffer`` to one rank, which must ``receive`` as many elements."""
    trace.note(label)
    return Pending(label, buffer, dist.isend(buffer, dst=team.global_rank(to), group=team.group))


def receive(team: Team, buffer: torch.Tensor, source: GroupRank, label: str) -> Pending:
    """Start filling ``buffer`` with what ``source`` sends."""
    trace.note(label)
    return Pending(label, buffer, dist.irecv(buffer, src=team.global_rank(source), group=team.group))
