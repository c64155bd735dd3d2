"""Collectives that leave a result on one rank only: a reduction to an owner, and a message from one rank to another."""

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
    return Pending(label, buffer, work, team)


def send(team: Team, buffer: torch.Tensor, to: GroupRank, label: str) -> Pending:
    """Start sending ``buffer`` to one rank, which must ``receive`` as many elements."""
    trace.note(label)
    return Pending(label, buffer, dist.isend(buffer, group_dst=to, group=team.group), team, between_two=True)


def receive(team: Team, buffer: torch.Tensor, source: GroupRank, label: str) -> Pending:
    """Start filling ``buffer`` with what ``source`` sends."""
    trace.note(label)
    return Pending(label, buffer, dist.irecv(buffer, group_src=source, group=team.group), team, between_two=True)
