"""Going on without ranks that were killed or froze: the others form a group anew, at the last whole iteration.

A failure is a join: what follows is what would have followed if the lost ranks had run out of inputs there, with
averages over the ranks that are left (``divide_by_initial_world_size=False``). See docs/reliability.md.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from ..comm import store as stores
from ..comm.collectives import broadcast_coalesced, broadcast_object
from ..comm.guard import DETECTION, Guard, guard_of
from ..comm.ranks import GroupRank, Team
from ..join.standing import standing_of
from .wrapper import DistributedDataParallel

_LOOK_EVERY_S = 0.05


@dataclass(frozen=True)
class Survivors:
    """The ranks that go on."""

    group: dist.ProcessGroup
    ranks: tuple[int, ...]  # global, ascending
    steps: int  # that all of them have made now
    source: int  # the global rank whose state all of them have now


def regroup(
    model: DistributedDataParallel, optimizer: torch.optim.Optimizer, steps: int, limit_s: float = 60.0
) -> Survivors:
    """Let ``model`` train on with the ranks that are left; call it on each of them after a ``PeerFailed``.

    The state of the rank with the most steps becomes that of all: of parameters, buffers and the optimizer. If one of
    them had made the step in which the rank was lost, that step counts; else it is made again, without the lost rank.

    Args:
        model: outside every join context.
        optimizer: an ordinary one, over all parameters, equal on all ranks (no ``ZeroRedundancyOptimizer``: the lost
            rank has taken its shard with it).
        steps: how many steps of the optimizer this rank has made.
        limit_s: how long to wait for ranks that are not known to be lost.

    Raises:
        TypeError: the optimizer is sharded.
        RuntimeError: the failure guard is off, the store has gone with the lost rank, too many ranks do not come, or
            this rank has been given up by the others.
    """
    if hasattr(optimizer, "consolidate_state_dict"):
        raise TypeError(
            "regroup: a sharded optimizer cannot go on without a rank, which has taken its shard of the state with it. "
            "Start the job anew from the last checkpoint, or train with an ordinary optimizer."
        )
    team = model.reducer.team
    guard, store = guard_of(team.group), stores.shared_by(team.group)
    if guard is None or store is None:
        raise RuntimeError(f"regroup: which ranks are left is not known, for the failure guard is off ({DETECTION}=0).")
    try:
        plan = _agreed(team, guard, store, steps, time.monotonic() + limit_s)
    except dist.DistNetworkError as error:
        raise RuntimeError(
            "regroup: the store in which the ranks meet has gone with the lost rank. Start the job under torchrun, "
            "which keeps it, or start anew from the last checkpoint."
        ) from error
    if team.global_rank(team.rank) not in plan["ranks"]:
        raise RuntimeError("regroup: this rank has been given up by the others, which go on without it.")
    guard.begin_anew()
    group = dist.new_group(
        plan["ranks"], timeout=timedelta(seconds=plan["timeout_s"]), use_local_synchronization=True,
        group_desc="joinery: survivors",
    )  # fmt: skip
    source = GroupRank(plan["ranks"].index(plan["source"]))
    _take_state(Team.of(group), model, optimizer, source)
    model._update_process_group(group)
    return Survivors(group, tuple(plan["ranks"]), plan["steps"], plan["source"])


def _agreed(team: Team, guard: Guard, store: dist.Store, steps: int, end: float) -> dict[str, Any]:
    """Who goes on, and whose state counts. The first rank that has seen everybody come, or be lost, decides."""
    key = f"{standing_of(team).token}/survivors"
    store.set(f"{key}/{team.rank}", str(steps))
    while not store.check([f"{key}/plan"]):
        here = {rank for rank in team.members if store.check([f"{key}/{rank}"])} - guard.lost()
        waiting = set(team.members) - here - guard.lost()
        if not waiting:
            store.compare_set(f"{key}/plan", "", json.dumps(_plan(team, store, key, sorted(here))))
        elif time.monotonic() > end:
            raise RuntimeError(
                f"regroup: ranks {sorted(waiting)} answer, but have not come. Usual cause: they have not met the "
                "failure yet (a collective of the user's own), or handle it in another way. Call regroup on every rank."
            )
        time.sleep(_LOOK_EVERY_S)
    return dict(json.loads(store.get(f"{key}/plan")))


def _plan(team: Team, store: dist.Store, key: str, here: list[int]) -> dict[str, Any]:
    made = {rank: int(store.get(f"{key}/{rank}")) for rank in here}
    steps = max(made.values())
    source = min(rank for rank in here if made[rank] == steps)
    everywhere = [team.global_rank(GroupRank(rank)) for rank in here]
    return {
        "ranks": everywhere, "source": team.global_rank(GroupRank(source)), "steps": steps,
        "timeout_s": store.timeout.total_seconds(),  # type: ignore[attr-defined]
    }  # fmt: skip


def _take_state(
    team: Team, model: DistributedDataParallel, optimizer: torch.optim.Optimizer, source: GroupRank
) -> None:
    """Parameters, buffers and the optimizer's state as they are on the source."""
    tensors = [tensor.detach() for tensor in (*model.module.parameters(), *model.module.buffers())]
    broadcast_coalesced(team, tensors, source, "survivors: parameters and buffers")
    state = optimizer.state_dict() if team.rank == source else None
    state = broadcast_object(team, state, source, model.device, "survivors: state of the optimizer")
    if team.rank != source:
        optimizer.load_state_dict(state)
