"""What overlap mode adds to the optimizer: its lifecycle, and stepping a part of the shard at a time."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import torch

from ..comm.optimizer_states import Counters, counters, put_back
from ..comm.ranks import Team
from ..join.hooks import FollowedSession, Joinable
from .at_once import small_ones_at_once
from .groups import Group, copy_settings, settings_of, take_settings
from .joining import Joining, Kept
from .partition import ShardPlan
from .shard import Shard, step_of


class OverlapState(IntEnum):
    """UNINITIALIZED → INITIALIZED when the first backward pass with the hook fixes the owners; never back."""

    UNINITIALIZED = 0
    INITIALIZED = 2


@dataclass
class OverlapInfo:
    """What the hooks have made of an overlapping optimizer, for inspection. Only the hooks' session writes it."""

    status: OverlapState = OverlapState.UNINITIALIZED
    #: whether buckets are cut into pieces for several owners (HOOK-006)
    shard_buckets: bool = False
    #: elements of all buckets, counted only with shard_buckets; None without
    total_size: int | None = None
    #: the parameters of each bucket of the present layout, and the group ranks that own some of them
    params_per_bucket: list[list[torch.Tensor]] = field(default_factory=list)
    assigned_ranks_per_bucket: list[set[int]] = field(default_factory=list)
    #: norm of all gradients before they were clipped, in the last iteration; None if they are not clipped
    total_norm: torch.Tensor | None = None


class PartialSteps:
    """Steps parts of the shard, so that all parts of an iteration together amount to one step of the optimizer.

    Any optimizer class serves: a part is stepped by showing the local optimizer only that part's parameters. Whatever
    an optimizer counts per parameter is then right by itself. What it counts per group, in state that belongs to no
    parameter or in its own attributes would be counted once per part. So from the second part of an iteration on that
    is put back before the part is stepped: each part sees what the iteration began with. This covers numbers, flags,
    strings, tensors, and lists, dicts and the like that hold nothing else; also those that begin in the first step.
    Where an optimizer puts another state in the place of its own, that is put together from what its parts have made.
    """

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self._optim = shard.optim
        self._owned = shard.owned_by(shard.team.rank)
        # id of a parameter -> index of its group
        self._group_of = {id(p): g for g, group in enumerate(self._optim.param_groups) for p in group["params"]}
        # settings and counters at the beginning of the iteration; None between iterations
        self._before: tuple[list[Group], Counters] | None = None
        # of each part of this iteration that has been stepped: the state after it, and its parameters
        self._stepped: list[tuple[Any, Sequence[torch.Tensor]]] = []

    def begin(self) -> None:
        """Begin an iteration with the settings that the exposed groups have now (ZERO-031)."""
        optim = self._optim = self._shard.optim
        copy_settings(self._shard.exposed.param_groups, optim.param_groups)
        optim.state = self._shard.exposed.state  # which a user may have replaced
        self._before = (settings_of(optim.param_groups), counters(optim))
        self._stepped = []

    def step(self, gradients: Sequence[torch.Tensor | None]) -> None:
        """Step the parameters of the shard that have a gradient here; the others and their states stay untouched."""
        if len(gradients) != len(self._owned):
            raise AssertionError(f"{len(gradients)} gradients for a shard of {len(self._owned)} parameters")
        pairs = [(p, g) for p, g in zip(self._owned, gradients, strict=True) if g is not None]
        self.step_pairs([parameter for parameter, _ in pairs], [gradient for _, gradient in pairs])

    def step_pairs(self, parameters: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor]) -> None:
        """Step these parameters of the shard with these gradients. Their ``.grad`` is what it was afterwards."""
        if self._before is None:
            self.begin()
        if self._stepped:
            self._put_back()
        shown: list[list[torch.Tensor]] = [[] for _ in self._optim.param_groups]
        kept: list[torch.Tensor | None] = [parameter.grad for parameter in parameters]
        whole = [group["params"] for group in self._optim.param_groups]
        try:
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.grad = gradient
                shown[self._group_of[id(parameter)]].append(parameter)
            for group, part in zip(self._optim.param_groups, shown, strict=True):
                group["params"] = part
            with small_ones_at_once(self._optim):
                step_of(self._optim)
        finally:
            for group, members in zip(self._optim.param_groups, whole, strict=True):
                group["params"] = members
            for parameter, before in zip(parameters, kept, strict=True):
                parameter.grad = before
            self._stepped.append((self._optim.state, parameters))

    def end(self) -> None:
        """End the iteration: settings that the local optimizer changed become visible."""
        if self._before is None:
            return
        if not self._stepped:
            self.step_pairs([], [])  # a rank that owns nothing counts the iteration all the same
        copy_settings(self._optim.param_groups, self._shard.exposed.param_groups)
        self._shard.exposed.state = self._optim.state = self._put_together()
        self._before, self._stepped = None, []
        self._shard.steps_since_consolidation += 1
        # a learning-rate scheduler looks for this mark of step(), and would warn that nobody has called it
        self._shard.exposed._opt_called = True  # type: ignore[attr-defined]

    def _put_back(self) -> None:
        assert self._before is not None
        settings, counted = self._before
        self._optim.state = self._shard.exposed.state
        take_settings(settings, self._optim.param_groups)
        put_back(counted, self._optim)

    def _put_together(self) -> Any:
        """The state after all parts: of each what it has made of its own parameters' states."""
        begun = self._shard.exposed.state
        renewed = [state for state, _ in self._stepped if state is not begun]
        if not renewed:
            return begun
        whole = renewed[-1]
        for state, parameters in self._stepped:
            for parameter in parameters:
                if parameter in state:
                    whole[parameter] = state[parameter]
                else:
                    whole.pop(parameter, None)
        return whole


class Overlap:
    """An optimizer that steps inside DDP's backward, as the hooks' session sees it; ``zero.overlap`` holds it.

    ``fix_owners`` comes first. An iteration is ``begin``, any number of ``step``, ``end``.
    """

    def __init__(self, shard: Shard, joining: Joining) -> None:
        #: who owns what, over which ranks
        self.shard = shard
        #: for inspection by the user
        self.info = OverlapInfo()
        #: None until the owners are fixed
        self.steps: PartialSteps | None = None
        self._joining = joining
        # the model whose group the optimizer follows; held weakly, as the hooks hold it
        self._leader: weakref.ref[Joinable] | None = None

    def follow(self, model: Joinable) -> None:
        """Where this model, which is on our group, changes groups, the optimizer does so with its next step."""
        self._leader = weakref.ref(model)

    @property
    def next_group(self) -> Any:
        """The process group of the next step, on which uneven inputs are met."""
        leader = None if self._leader is None else self._leader()
        return self.shard.team.group if leader is None else leader.join_process_group

    def fix_owners(self, plan: ShardPlan) -> None:
        """Name the owners before the first overlapped step. With a second model around the same parameters, which
        has a hook of its own, their states go over to the owners that its buckets have."""
        if plan.world != self.shard.team.size or plan.numels != self.shard.plan.numels:
            raise AssertionError("the overlap plan is one of other parameters or of another number of ranks")
        if self.steps is not None:
            self.move_to(self.shard.team, plan)
            return
        self.shard.fix_owners(plan)
        self.steps = PartialSteps(self.shard)
        self.info.status = OverlapState.INITIALIZED

    def move_to(self, team: Team, plan: ShardPlan) -> None:
        """Share the state over a group from now on, with these owners; call it on every rank of that group."""
        self.shard.move_to(team, plan)
        self.steps = PartialSteps(self.shard)

    def begin(self, session: FollowedSession | None) -> None:
        """Begin an iteration with the present settings; inside a join context joined ranks are told of them."""
        self.shard.check_trainability_unchanged()
        if session is not None:
            self._joining.share_settings(session)
        self._initialized().begin()

    def share_kept(self, kept: Kept, device: torch.device, session: FollowedSession) -> Kept:
        """Gradients that no backward has renewed, by place: a joined rank is told those of a live one."""
        return self._joining.share_kept(kept, device, session)

    def step(self, parameters: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor]) -> None:
        """Step these parameters of the shard with these gradients. Their ``.grad`` is what it was afterwards."""
        self._initialized().step_pairs(parameters, gradients)

    def end(self) -> None:
        """End the iteration."""
        self._initialized().end()

    def _initialized(self) -> PartialSteps:
        if self.steps is None:
            raise AssertionError("an overlapped step begins before the owners are fixed")
        return self.steps
