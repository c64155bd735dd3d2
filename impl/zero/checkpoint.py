"""Moving optimizer state between its shards and one global dictionary: gathering, checking, taking one's own part."""

from __future__ import annotations

import copy
import io
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch

from ..comm.collectives import all_to_all_object, broadcast
from ..comm.ranks import GroupRank, Team
from ..comm.sharded import receive, send

#: State of parameters by global index.
States = dict[int, Any]


def gather_states(team: Team, mine: States, to: GroupRank, device: torch.device) -> States | None:
    """Every rank's states on rank ``to``, ascending by index; None elsewhere (ZERO-016).

    One shard travels at a time, so that the target never holds more than the result and one packed shard. Between CPUs
    it goes straight to the target, and no other rank holds anything of its peers. Where the group has a backend for an
    accelerator only, everybody receives it for a moment: a message from rank to rank would make NCCL build a
    communicator for every pair, which stays. The waits end with the process group's own timeout: a message from rank to
    rank cannot be waited for in slices (on Gloo the first slice that runs out ends it).
    """
    team.tally.count()  # for messages between two ranks, and again where this rank's have come
    states = _gather(team, mine, to, device)
    team.tally.count()
    return states


def _gather(team: Team, mine: States, to: GroupRank, device: torch.device) -> States | None:
    device = team.control_device(device)
    if device.type != "cpu":
        return _shared(team, mine, to, device)
    if team.rank != to:
        _send(team, mine, to, device)
        return None
    gathered = snapshot(mine)
    for rank in team.members:
        if rank != to:
            gathered.update(_receive(team, GroupRank(rank), device))
    return dict(sorted(gathered.items()))


def handed_over(team: Team, mine: States, owners: Sequence[int], device: torch.device) -> States:
    """The states of what this rank owns from now on, by index. Each state goes from its holder to its owner only."""
    leaving: list[States] = [{} for _ in team.members]
    for index, state in mine.items():
        leaving[owners[index]][index] = state if owners[index] == team.rank else snapshot(state)
    held: States = {}
    for part in all_to_all_object(team, leaving, device, "zero: states on the move"):
        held.update(part)
    return held


def _shared(team: Team, mine: States, to: GroupRank, device: torch.device) -> States | None:
    """The same on the group's own communicator: each rank in turn sends to all."""
    gathered: States = snapshot(mine) if team.rank == to else {}
    for rank in map(GroupRank, team.members):
        if rank == to:
            continue
        body = _packed(mine).to(device) if team.rank == rank else None
        length = torch.tensor([0 if body is None else body.numel()], dtype=torch.int64, device=device)
        size = int(broadcast(team, length, rank, f"zero: size of the states of rank {rank}").wait().item())
        whole = torch.empty(size, dtype=torch.uint8, device=device) if body is None else body
        broadcast(team, whole, rank, f"zero: states of rank {rank}").wait()
        if team.rank == to:
            gathered.update(_unpacked(whole))
    return dict(sorted(gathered.items())) if team.rank == to else None


def _send(team: Team, states: States, to: GroupRank, device: torch.device) -> None:
    body = _packed(states).to(device)
    length = torch.tensor([body.numel()], dtype=torch.int64, device=device)
    send(team, length, to, f"zero: size of the states of rank {team.rank}").wait()
    send(team, body, to, f"zero: states of rank {team.rank}").wait()


def _receive(team: Team, source: GroupRank, device: torch.device) -> States:
    length = torch.zeros(1, dtype=torch.int64, device=device)
    size = int(receive(team, length, source, f"zero: size of the states of rank {source}").wait().item())
    body = torch.empty(size, dtype=torch.uint8, device=device)
    receive(team, body, source, f"zero: states of rank {source}").wait()
    return _unpacked(body)


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
    if isinstance(value, dict):
        return {key: snapshot(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(snapshot(item) for item in value)
    return copy.deepcopy(value)


def own_part(state_dict: Mapping[str, Any], owned: Collection[int]) -> dict[str, Any]:
    """The dictionary without the states of parameters that others own. Nothing of the argument is changed or shared.

    The keys of a state dictionary are whatever its groups list as ``params``; their order is the global order.
    """
    keys: Sequence[Any] = [key for group in state_dict["param_groups"] for key in group["params"]]
    foreign = {key for index, key in enumerate(keys) if index not in owned}
    kept = {key: state for key, state in state_dict["state"].items() if key not in foreign and state is not None}
    return {**state_dict, "state": copy.deepcopy(kept)}
