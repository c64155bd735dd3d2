"""Going on without ranks that were killed or froze: the others form a group anew, at the last whole iteration.

A failure is a join: what follows is what would have followed if the lost ranks had run out of inputs there, with
averages over the ranks that are left (``divide_by_initial_world_size=False``). See docs/reliability.md.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed as dist

from ..comm.collectives import broadcast_coalesced, broadcast_object, each_once
from ..comm.guard import DETECTION, Guard, guard_of
from ..comm.local_groups import new_local_group
from ..comm.optimizer_states import Counters, as_it_was, by_place, counters_of, found_here, loadable, take_over
from ..comm.ranks import GroupRank, Team
from ..join.group_record import record_of
from .hooks.optimizer_overlap_hooks import steps_in_backward
from .hooks.powersgd_state import PowerSGDState, mersenne_twister
from .hooks.reduction import averaged_over
from .params import digest
from .wrapper import DistributedDataParallel

_LOOK_EVERY_S = 0.05


@dataclass(frozen=True)
class Survivors:
    """The ranks that go on."""

    group: dist.ProcessGroup
    ranks: tuple[int, ...]  # global, ascending
    steps: int  # that all of them have made now
    source: int  # the global rank whose state all of them have now


class ShardMirror(Protocol):
    """Copies of a sharded optimizer's shards on other ranks, as ``ZeroRedundancyOptimizer.keep_mirror`` makes them."""

    @property
    def team(self) -> Team:
        """The ranks that share the state."""

    @property
    def number(self) -> int:
        """That of the last step that has been copied to the end on this rank; no two states have the same."""

    def held(self) -> dict[int, list[int]]:
        """By group rank: the steps after which this rank holds a copy of that one's shard."""

    def restore(self, team: Team, step: int, lost: Collection[int], source: GroupRank) -> None:
        """Go back to what was there after this step, on the ranks of another team; perhaps again, for fewer."""

    def all_restored(self) -> None:
        """All ranks of that team have gone back."""


def regroup(
    model: DistributedDataParallel, optimizer: torch.optim.Optimizer, steps: int, limit_s: float = 60.0
) -> Survivors:
    """Let ``model`` train on with the ranks that are left; call it on each of them after a ``PeerFailed``.

    The state of the rank with the most steps becomes that of all: of parameters, buffers and the optimizer. If one of
    them had made the step in which the rank was lost, that step counts; else it is made again, without the lost rank.

    With a ``ZeroRedundancyOptimizer`` that keeps a mirror, parameters and state are put together from the copies of the
    last step of which the survivors hold every shard; ``Survivors.steps`` may be less than a rank has made.

    Args:
        model: outside every join context.
        optimizer: over all parameters: an ordinary one, equal on all ranks, or a ``ZeroRedundancyOptimizer`` on the
            ranks of the model that keeps a mirror (else a lost rank has taken its shard with it).
        steps: how many steps of the optimizer this rank has made.
        limit_s: how long to wait for ranks that are not known to be lost, and for the connections of the new group.

    Raises:
        TypeError: the optimizer is sharded and keeps no mirror, or wraps another one, or there is one that steps in the
            backward.
        ValueError: it is sharded over other ranks than those of the model.
        RuntimeError: called inside a join context, the failure guard is off, the store has gone with the lost rank, too
            many ranks do not come, this rank has been given up by the others, their parameters have other shapes, or a
            shard has been lost together with its copies.
    """
    team = model.reducer.team
    if model._join_session is not None:
        raise RuntimeError(
            "regroup: the model is in a join context over the ranks of before. Leave the block by the PeerFailed, call "
            "regroup outside of it, and go on in a new one."
        )
    _check_steps(model, optimizer)
    mirror = _mirror_of(optimizer, team)
    model.reducer.restore_full_values()  # between a forward in mixed precision and its backward, say
    if team.size == 1:  # left alone before, and failed by itself
        return Survivors(team.group, tuple(team.global_ranks()), steps, team.global_rank(team.rank))
    guard = guard_of(team.group)
    if guard is None:
        raise RuntimeError(f"regroup: nobody knows which ranks are left, as the failure guard is off ({DETECTION}=0).")
    record = record_of(team)
    report: dict[str, Any] = {"steps": steps, "counted": [state.iter for state in _that_count(model)]}
    report["forms"] = digest((tuple(tensor.shape), tensor.dtype) for tensor in _tensors_of(model)).hex()
    if mirror is not None:
        report |= {"mirrored": mirror.number, "held": list(mirror.held().items())}
    try:
        while True:  # once more for each rank that is lost meanwhile
            meeting = _Meeting(team, guard, f"{record.token}/survivors/{record.regroups}")
            plan = meeting.agree(report, time.monotonic() + limit_s)
            record.regroups += 1  # the next plan is another: of a further attempt, or of another model on this group
            _refuse(plan, team)
            taken = _take_over(plan, team, guard, model, optimizer, mirror, limit_s)
            if meeting.all_ready(plan, ready=taken is not None):
                assert taken is not None
                taken.go_on(model, optimizer, mirror)
                record.smaller[tuple(plan["ranks"])] = taken.group
                record_of(Team.of(taken.group)).smaller = record.smaller
                return Survivors(taken.group, tuple(plan["ranks"]), plan["steps"], plan["source"])
    except dist.DistNetworkError as error:
        raise RuntimeError(
            "regroup: the store in which the ranks meet has gone with the lost rank. Start the job under torchrun, "
            "which keeps it, or start anew from the last checkpoint."
        ) from error


def _refuse(plan: dict[str, Any], team: Team) -> None:
    """RuntimeError where this rank cannot go on, or none can."""
    if team.global_rank(team.rank) not in plan["ranks"]:
        raise RuntimeError("regroup: this rank has been given up by the others, which go on without it.")
    if plan["otherwise"]:
        raise RuntimeError(
            f"regroup: parameters or buffers of rank {' and of rank '.join(map(str, plan['otherwise']))} have other "
            f"shapes than those of rank {plan['source']}, whose state is to be that of all. Usual cause: DDP ignores "
            "some, which differ by rank. Start anew from the last checkpoint."
        )
    if plan["gone"]:
        raise RuntimeError(
            f"regroup: the shard of rank {' and of rank '.join(map(str, plan['gone']))} is gone: no rank that is left "
            "holds a copy of it. Usual cause: a rank was lost together with the one that held its copies, or before "
            "the first step after load_state_dict. Start anew from the last checkpoint; where ranks share a host, "
            "give keep_mirror() their number as distance."
        )


@dataclass
class _Taken:
    """What this rank has got from the others, and does not use before all have theirs."""

    group: dist.ProcessGroup
    tensors: list[torch.Tensor]  # parameters and buffers
    values: list[torch.Tensor]  # theirs on the source
    state: tuple[dict[str, Any], Counters] | None  # of an ordinary optimizer
    counted: list[int]  # how many iterations, by each state of a hook that counts them

    def go_on(
        self, model: DistributedDataParallel, optimizer: torch.optim.Optimizer, mirror: ShardMirror | None
    ) -> None:
        """All ranks have got theirs: go on with it."""
        if mirror is None:
            _copy(self.tensors, self.values)
            assert self.state is not None
            _load(optimizer, *self.state)
        else:
            mirror.all_restored()
        for state, count in zip(_that_count(model), self.counted, strict=True):
            state.iter = count
            if isinstance(state, PowerSGDState):
                state.rng = mersenne_twister(count)  # some ranks may have drawn more of the other than others
        _average_hooks_over(model, self.group)
        model._update_process_group(self.group)


def _average_hooks_over(model: DistributedDataParallel, group: dist.ProcessGroup) -> None:
    """A hook whose state is the model's group, or has it as its ``process_group``, goes on with this one."""
    former, transport = model.process_group, model.reducer.transport
    for hook, state in model._comm_hooks:
        if state is former or (state is None and averaged_over(hook, state) is former):
            transport.hook = group, hook
        elif getattr(state, "process_group", None) is former:
            state.process_group = group


def _tensors_of(model: DistributedDataParallel) -> list[torch.Tensor]:
    """Parameters and buffers, those too that DDP ignores."""
    return [tensor.detach() for tensor in (*model.module.parameters(), *model.module.buffers())]


def _that_count(model: DistributedDataParallel) -> list[Any]:
    """The states of communication hooks that count iterations, as the library's do."""
    return [state for _, state in model._comm_hooks if isinstance(getattr(state, "iter", None), int)]


def _copy(tensors: list[torch.Tensor], values: list[torch.Tensor]) -> None:
    for tensor, value in zip(tensors, values, strict=True):
        each_once(tensor).copy_(each_once(value))


def _parameters_of(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _state_of(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Its state dictionary, in which parameters that groups name stand by their places: a load copies what is there."""
    state = optimizer.state_dict()
    groups = state.get("param_groups", ())
    return {**state, "param_groups": by_place(groups, _parameters_of(optimizer))} if groups else state


def _load(optimizer: torch.optim.Optimizer, state: dict[str, Any], counters: Counters) -> None:
    """Load a state as it is: ``load_state_dict`` by itself casts that of a parameter to the parameter's dtype."""
    seen: list[dict[str, Any]] = []

    def note(_: Any, loaded: dict[str, Any]) -> dict[str, Any]:
        seen.append(loaded)
        return {**loaded, "state": loadable(loaded["state"])}

    last = optimizer.register_load_state_dict_pre_hook(note)  # after the user's
    try:
        optimizer.load_state_dict(state)
    finally:
        last.remove()
    parameters = _parameters_of(optimizer)
    for group, its in zip(optimizer.param_groups, found_here(optimizer.param_groups, parameters), strict=True):
        group.update(its)
    for loaded in seen:
        keys = [key for group in loaded["param_groups"] for key in group["params"]]
        for key, parameter in zip(keys, parameters, strict=True):
            if key in loaded["state"]:
                optimizer.state[parameter] = as_it_was(loaded["state"][key], optimizer.state[parameter])
    take_over(counters, optimizer)


def _take_over(
    plan: dict[str, Any],
    team: Team,
    guard: Guard,
    model: DistributedDataParallel,
    optimizer: torch.optim.Optimizer,
    mirror: ShardMirror | None,
    limit_s: float,
) -> _Taken | None:
    """Form the group and bring the state to all of its ranks; None if one of them was lost meanwhile."""
    guard.begin_anew()
    try:
        group = record_of(team).smaller.get(tuple(plan["ranks"]))  # which another model on this group has formed
        if group is None or group is team.group:  # its own one may hold what the failure has left behind
            group = _new_group(plan["ranks"], limit_s, plan["timeout_s"])
        left, source = Team.of(group), GroupRank(plan["ranks"].index(plan["source"]))
        tensors = _tensors_of(model)
        values = tensors
        if left.rank != source:
            values = [torch.empty_strided(t.size(), t.stride(), dtype=t.dtype, device=t.device) for t in tensors]
        broadcast_coalesced(left, values, source, "survivors: parameters and buffers")
        state = None
        if mirror is None:
            state = (_state_of(optimizer), counters_of(optimizer)) if left.rank == source else None
            state = broadcast_object(left, state, source, model.device, "survivors: state of the optimizer")
        else:
            _copy(tensors, values)  # the mirror has what its optimizer's parameters were
            lost = [rank for rank in team.members if rank not in plan["here"]]
            mirror.restore(left, plan["mirrored"], lost, source)
    except RuntimeError:  # PeerFailed, or the group could not be formed
        if not guard.lost() & set(plan["here"]):
            raise
        return None
    return _Taken(group, tensors, values, state, plan["counted"])


def _new_group(ranks: list[int], limit_s: float, timeout_s: float) -> dist.ProcessGroup:
    """A group of these ranks, formed within the limit: nothing tells its ranks meanwhile that one is lost."""
    group = new_local_group(ranks, timeout=timedelta(seconds=limit_s), group_desc="joinery: survivors")
    group.set_timeout(timedelta(seconds=timeout_s))
    return group


def _check_steps(model: DistributedDataParallel, optimizer: torch.optim.Optimizer) -> None:
    """TypeError where nobody could tell which steps have been made, or hand them over."""
    if any(steps_in_backward(hook) for hook, _ in model._comm_hooks):
        raise TypeError(
            "regroup: the communication hook steps the optimizer, bucket by bucket, so that a part of the step that "
            "failed has been made. Start anew from the last checkpoint."
        )
    if model._steps_in_backward:
        raise TypeError(
            "regroup: optimizers step in the backward of this model, attached to parameters or fused: some ranks may "
            "have made the step that failed, and their state cannot be handed over. Start anew from the last "
            "checkpoint."
        )
    if not hasattr(optimizer, "_optimizer_load_state_dict_pre_hooks"):
        raise TypeError(
            f"regroup: {type(optimizer).__name__} has not called the constructor of torch.optim.Optimizer, so that its "
            "state cannot be handed over as it is. Usual cause: a wrapper such as PostLocalSGDOptimizer; give the "
            "optimizer inside."
        )


def _mirror_of(optimizer: torch.optim.Optimizer, team: Team) -> ShardMirror | None:
    """None for an ordinary optimizer."""
    if not hasattr(optimizer, "consolidate_state_dict"):
        return None
    mirror: ShardMirror | None = getattr(optimizer, "mirror", None)
    if mirror is None:
        raise TypeError(
            "regroup: a sharded optimizer cannot go on without a rank, which has taken its shard of the state with it. "
            "Start the job anew from the last checkpoint. To be able to go on, call keep_mirror() of Joinery's "
            "ZeroRedundancyOptimizer before training, or train with an ordinary optimizer."
        )
    if mirror.team.global_ranks() != team.global_ranks():
        raise ValueError(
            f"regroup: the optimizer is sharded over the ranks {mirror.team.global_ranks()}, but the model averages "
            f"over {team.global_ranks()}. Build both on the same process group."
        )
    return mirror


class _Meeting:
    """The ranks that are left decide in the store what they do; there, all see the same decision."""

    def __init__(self, team: Team, guard: Guard, key: str) -> None:
        self._team = team
        self._guard = guard
        self._store = guard.store
        self._key = key

    def agree(self, report: dict[str, Any], end: float) -> dict[str, Any]:
        """Who goes on, and from what. The first rank that has seen everybody come, or be lost, decides."""
        team, guard, store, key = self._team, self._guard, self._store, self._key
        store.set(f"{key}/{team.rank}", json.dumps(report))
        while not store.check([f"{key}/plan"]):
            left = set(team.members) - guard.lost()
            here = {rank for rank in left if store.check([f"{key}/{rank}"])}
            if here == left:
                by_rank = {rank: json.loads(store.get(f"{key}/{rank}")) for rank in sorted(here)}
                limit_s = store.timeout.total_seconds()  # type: ignore[attr-defined]
                store.compare_set(f"{key}/plan", "", json.dumps({**_plan(team, by_rank), "timeout_s": limit_s}))
            elif time.monotonic() > end:
                raise RuntimeError(
                    f"regroup: ranks {sorted(left - here)} answer, but have not come. Usual cause: they have not met "
                    "the failure yet (a collective of the user's own), or handle it in another way. Call regroup on "
                    "every rank."
                )
            time.sleep(_LOOK_EVERY_S)
        return dict(json.loads(store.get(f"{key}/plan")))

    def all_ready(self, plan: dict[str, Any], *, ready: bool) -> bool:
        """Whether all ranks of the plan have what they need: the answer is the same on each of them.

        One that lacks something knows which rank has been lost.
        """
        store, answer = self._store, f"{self._key}/ready"
        keys = {rank: f"{answer}/{rank}" for rank in plan["here"]}
        if ready:
            store.set(keys[self._team.rank], "")
        end = time.monotonic() + plan["timeout_s"]
        while not store.check([answer]):
            if self._guard.lost() & set(keys) or time.monotonic() > end:
                store.compare_set(answer, "", "no")
            elif store.check(list(keys.values())):
                store.compare_set(answer, "", "yes")
            else:
                time.sleep(_LOOK_EVERY_S)
        return bytes(store.get(answer)) == b"yes"


def _plan(team: Team, by_rank: Mapping[int, dict[str, Any]]) -> dict[str, Any]:
    """What all do, by what each of the ranks that are left has reported."""
    made = {rank: report["steps"] for rank, report in by_rank.items()}
    steps = max(made.values())
    source = min(rank for rank in by_rank if made[rank] == steps)
    # another rank may be further, in the backward of a step that nobody has made
    counted = [min(each) for each in zip(*(by_rank[r]["counted"] for r in by_rank if made[r] == steps), strict=True)]
    forms = {rank: report["forms"] for rank, report in by_rank.items()}
    otherwise = [team.global_rank(GroupRank(rank)) for rank in by_rank if forms[rank] != forms[source]]
    mirrored: int | None = None
    gone: list[int] = []
    if "held" in by_rank[source]:
        mirrored, gone = last_whole([dict(report["held"]) for report in by_rank.values()], team.members)
        # the program and the mirror need not have begun to count at the same step
        steps = max(made[rank] - report["mirrored"] for rank, report in by_rank.items()) + (mirrored or 0)
    return {
        "ranks": [team.global_rank(GroupRank(rank)) for rank in by_rank], "here": list(by_rank),
        "source": team.global_rank(GroupRank(source)), "steps": steps, "mirrored": mirrored,
        "counted": counted, "otherwise": otherwise, "gone": [team.global_rank(GroupRank(rank)) for rank in gone],
    }  # fmt: skip


def last_whole(
    held: Collection[Mapping[int, Collection[int]]], owners: Collection[int]
) -> tuple[int | None, list[int]]:
    """The last step after which every owner's shard is held by somebody; where there is none, whose are missing.

    ``held``: of each rank that is left, by owner, the steps of which it has that one's shard.
    """
    steps = {owner: {step for each in held for step in each.get(owner, ())} for owner in owners}
    whole = set.intersection(*steps.values())
    if whole:
        return max(whole), []
    held_once = set().union(*steps.values())
    missing = ([owner for owner, some in steps.items() if step not in some] for step in held_once)
    return None, min(missing, key=len, default=list(owners))
