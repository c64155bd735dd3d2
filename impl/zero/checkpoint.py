"""Moving optimizer state between its shards and one global dictionary: gathering, checking, taking one's own part."""

from __future__ import annotations

import copy
import io
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch

from ..comm.collectives import all_reduce, all_to_all, all_to_all_object, broadcast
from ..comm.optimizer_states import copied
from ..comm.ranks import GroupRank, Team

#: State of parameters by global index.
States = dict[int, Any]


def gather_states(team: Team, mine: States, to: GroupRank, device: torch.device) -> States | None:
    """Every rank's states on rank ``to``, by index; None elsewhere (ZERO-016).

    One shard travels at a time, so that the target never holds more than the result and one packed shard. Between CPUs
    it goes straight to the target, and no other rank holds anything of its peers. Where the group has a backend for an
    accelerator only, everybody receives it for a moment: a message from rank to rank would make NCCL build a
    communicator for every pair, which stays.
    """
    device = team.control_device(device)
    body = _nothing() if team.rank == to else _packed(mine)
    sizes = torch.zeros(team.size, dtype=torch.int64, device=device)
    sizes[team.rank] = body.numel()
    by_rank = all_reduce(team, sizes, "zero: sizes of the states").wait().tolist()
    gathered = snapshot(mine) if team.rank == to else {}
    for rank in map(GroupRank, team.members):
        if rank == to:
            continue
        if device.type == "cpu":
            part = _sent_on(team, body, rank, to, by_rank[rank])
        else:
            part = _sent_to_all(team, body, rank, by_rank[rank], device)
        gathered.update(_unpacked(part) if team.rank == to else {})
    return gathered if team.rank == to else None


def _sent_on(team: Team, body: torch.Tensor, source: GroupRank, to: GroupRank, size: int) -> torch.Tensor:
    """What ``source`` has, on rank ``to``; empty elsewhere.

    An exchange in which nobody else has anything to say. Gloo's messages between two ranks cannot be watched: the first
    slice of a wait that runs out closes the connection.
    """
    arriving, leaving = [0] * team.size, [0] * team.size
    if team.rank == source:
        leaving[to] = size
    if team.rank == to:
        arriving[source] = size
    sent = body if team.rank == source else _nothing()
    received = torch.empty(sum(arriving), dtype=torch.uint8, device="cpu")
    return all_to_all(team, received, sent, f"zero: states of rank {source}", arriving, leaving).wait()


def _sent_to_all(team: Team, body: torch.Tensor, source: GroupRank, size: int, device: torch.device) -> torch.Tensor:
    """What ``source`` has, on every rank, by the group's own communicator."""
    whole = body.to(device) if team.rank == source else torch.empty(size, dtype=torch.uint8, device=device)
    return broadcast(team, whole, source, f"zero: states of rank {source}").wait()


def _nothing() -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8, device="cpu")


def handed_over(team: Team, mine: States, owners: Sequence[int], device: torch.device) -> States:
    """The states of what this rank owns from now on, by index. Each state goes from its holder to its owner only; what
    is counted in groups (negative keys) goes to all."""
    leaving: list[States] = [{} for _ in team.members]
    for key, value in mine.items():
        for rank in team.members if key < 0 else [owners[key]]:
            leaving[rank][key] = value if rank == team.rank else snapshot(value)
    held: States = {}
    for part in all_to_all_object(team, leaving, device, "zero: states on the move"):
        held.update(part)
    return held


def _packed(states: States) -> torch.Tensor:
    stream = io.BytesIO()
    torch.save(snapshot(states), stream)
    return torch.frombuffer(stream.getbuffer(), dtype=torch.uint8)


def _unpacked(body: torch.Tensor) -> States:
    # written by a peer of our own job a moment ago, so arbitrary Python values are as safe as the peer itself
    states: States = torch.load(io.BytesIO(body.cpu().numpy().tobytes()), map_location="cpu", weights_only=False)
    return states


def snapshot(value: Any) -> Any:
    """A copy on the CPU that later steps do not change."""
    if isinstance(value, torch.Tensor):
        return value.detach().to("cpu", copy=True)
    made = copied(value, snapshot)
    return copy.deepcopy(value) if made is value else made


def further_entries(state_dict: Mapping[str, Any]) -> dict[str, Any]:
    """Copies of the entries that not every optimizer has."""
    return copy.deepcopy({key: value for key, value in state_dict.items() if key not in ("state", "param_groups")})


def own_states(
    state_dict: Mapping[str, Any], parameters: Sequence[torch.Tensor], owned: Collection[int]
) -> dict[Any, Any]:
    """Copies of the states in the dictionary, by parameter, without those of parameters that others own.

    The keys of a state dictionary are whatever its groups list as ``params``; their order is the global order.
    """
    keys: Sequence[Any] = [key for group in state_dict["param_groups"] for key in group["params"]]
    foreign = {key for index, key in enumerate(keys) if index not in owned}
    kept = {key: state for key, state in state_dict["state"].items() if key not in foreign and state is not None}
    parameter_of = dict(zip(keys, parameters, strict=True))
    return {parameter_of.get(key, key): state for key, state in copy.deepcopy(kept).items()}
