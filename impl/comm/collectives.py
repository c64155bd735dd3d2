"""The only caller of torch.distributed's collectives. Each takes a label, which names it in traces and errors."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
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
    team.tally.count()
    return Pending(label, buffer, work, team, result_in_future=team.is_in_python)


def broadcast(team: Team, buffer: torch.Tensor, source: GroupRank, label: str) -> Pending:
    """Start sending ``buffer`` of group rank ``source`` to the whole team, in place."""
    trace.note(label)
    if buffer.is_complex():
        work = dist.broadcast(buffer, group_src=source, group=team.group, async_op=True)
    else:
        work = team.group.broadcast([buffer], _sending(source))
    team.tally.count()
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
    team.tally.count()
    return Pending(label, whole, work, team)


def all_to_all(
    team: Team,
    received: torch.Tensor,
    sent: torch.Tensor,
    label: str,
    arriving: list[int] | None = None,
    leaving: list[int] | None = None,
) -> Pending:
    """Start sending each rank its part of ``sent``, in rank order, and filling ``received`` with what comes, likewise.

    ``arriving`` and ``leaving`` say how many elements each part has; without them all are equal. ``sent`` and
    ``received`` may overlap where a rank keeps what is its own.
    """
    trace.note(label)
    work = dist.all_to_all_single(received, sent, arriving, leaving, group=team.group, async_op=True)
    team.tally.count()
    return Pending(label, received, work, team)


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


def all_to_all_object(team: Team, values: Sequence[Any], device: torch.device, label: str) -> list[Any]:
    """``values[k]`` to rank k; returns what each rank has sent here, in rank order. Blocks.

    Nothing goes to a rank but what is meant for it. What a rank has for itself is handed back as it is.
    """
    if team.size == 1:
        return list(values)
    device = team.control_device(device)
    packed = [b"" if rank == team.rank else pickle.dumps(value) for rank, value in enumerate(values)]
    lengths = torch.tensor(list(map(len, packed)), dtype=torch.int64, device=device)
    arriving = torch.empty_like(lengths)
    all_to_all(team, arriving, lengths, f"{label}: lengths").wait()
    sent = torch.frombuffer(bytearray(b"".join(packed)), dtype=torch.uint8).to(device)
    sizes = arriving.tolist()
    received = torch.empty(sum(sizes), dtype=torch.uint8, device=device)
    all_to_all(team, received, sent, label, sizes, list(map(len, packed))).wait()
    parts = received.cpu().split(sizes)
    return [
        values[rank] if rank == team.rank else pickle.loads(part.numpy().tobytes()) for rank, part in enumerate(parts)
    ]
