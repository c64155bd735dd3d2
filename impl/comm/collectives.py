"""The only caller of torch.distributed's collectives. Each takes a label, which names it in traces and errors."""

from __future__ import annotations

import pickle
from functools import cache
from typing import Any

import torch
import torch.distributed as dist

from . import trace
from .pending import Pending
from .ranks import GroupRank, Team

#: torch 2.13 has renamed it and warns of the older name
_all_gather: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


# What every iteration does goes straight to the group's methods, with options that are made once: torch.distributed's
# functions make them anew and look at much that is known here (36 of 108 µs in the middle of a step). Complex tensors
# go the long way, which shows them to the backend as real ones.


def all_reduce(team: Team, buffer: torch.Tensor, label: str, op: Any = dist.ReduceOp.SUM) -> Pending:
    """Start reducing ``buffer`` in place over the team (sum unless ``op`` says otherwise)."""
    trace.note(label)
    if buffer.is_complex():
        work = dist.all_reduce(buffer, op=op, group=team.group, async_op=True)
    else:
        work = team.group.allreduce([buffer], _reducing(op))
    return Pending(label, buffer, work, team)


def broadcast(team: Team, buffer: torch.Tensor, source: GroupRank, label: str) -> Pending:
    """Start sending ``buffer`` of group rank ``source`` to the whole team, in place."""
    trace.note(label)
    if buffer.is_complex():
        work = dist.broadcast(buffer, group_src=source, group=team.group, async_op=True)
    else:
        work = team.group.broadcast([buffer], _sending(source))
    return Pending(label, buffer, work, team)


@cache
def _reducing(op: Any) -> dist.AllreduceOptions:
    options = dist.AllreduceOptions()
    options.reduceOp = op
    options.asyncOp = True
    return options


@cache
def _sending(source: GroupRank) -> dist.BroadcastOptions:
    options = dist.BroadcastOptions()
    options.rootRank = source
    options.rootTensor = 0
    options.asyncOp = True
    return options


def all_gather(team: Team, whole: torch.Tensor, part: torch.Tensor, label: str) -> Pending:
    """Start gathering equal flat parts, in rank order, into ``whole`` (``team.size`` times as long as ``part``)."""
    trace.note(label)
    work = _all_gather(whole, part, group=team.group, async_op=True)
    return Pending(label, whole, work, team)


def started(team: Team) -> int | None:
    """How many collectives this rank has started on the team's group, whoever did; None where the backend counts none.

    torch has no public way to it.
    """
    try:
        return int(team.group._get_sequence_number_for_group())  # type: ignore[attr-defined]
    except (AttributeError, RuntimeError):
        return None


def broadcast_object(team: Team, value: Any, source: GroupRank, device: torch.device, label: str) -> Any:
    """Send a small picklable value from ``source`` to the team; returns it on every rank. Blocks.

    ``device``: for a group without a backend for the CPU.
    """
    device = team.control_device(device)
    payload = pickle.dumps(value) if team.rank == source else b""
    length = torch.tensor([len(payload)], dtype=torch.int64, device=device)
    size = int(broadcast(team, length, source, f"{label}: length").wait().item())
    body = torch.zeros(size, dtype=torch.uint8, device=device)
    if team.rank == source:
        body.copy_(torch.frombuffer(bytearray(payload), dtype=torch.uint8))
    broadcast(team, body, source, label).wait()
    return pickle.loads(body.cpu().numpy().tobytes())


def all_gather_object(team: Team, value: Any, device: torch.device, label: str) -> list[Any]:
    """Every rank's small picklable value, in rank order. Blocks. ``device``: as of ``broadcast_object``."""
    device = team.control_device(device)
    payload = torch.frombuffer(bytearray(pickle.dumps(value)), dtype=torch.uint8).to(device)
    sizes = torch.zeros(team.size, dtype=torch.int64, device=device)
    sizes[team.rank] = payload.numel()
    longest = int(all_reduce(team, sizes, f"{label}: lengths").wait().max().item())
    part = torch.zeros(longest, dtype=torch.uint8, device=device)
    part[: payload.numel()] = payload
    whole = torch.zeros(longest * team.size, dtype=torch.uint8, device=device)
    all_gather(team, whole, part, label).wait()
    rows = whole.cpu().view(team.size, longest).numpy()
    return [pickle.loads(row[:size].tobytes()) for row, size in zip(rows, sizes.tolist(), strict=True)]
