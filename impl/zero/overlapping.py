"""What overlap mode adds to the optimizer: its lifecycle, and stepping a part of the shard at a time."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import torch

from ..comm.ranks import Team
from ..join.hooks import FollowedSession, Joinable
from .at_once import small_ones_at_once
from .group_counts import noted
from .groups import copy_settings
from .joining import Joining, Kept
from .partition import ShardPlan
from .shard import Shard, is_of_torch, numels_of, step_of


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
    """Steps the shard with the gradients that it is given, so that an iteration amounts to one step of the optimizer.

    One of torch's own optimizers may be given a part after the other, since all that it keeps belongs to a parameter:
    it is shown that part's parameters only. What others keep beside that (lists of parameters, counters) nobody can
    know, so they are given all gradients at once.
    """

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self._owned = shard.owned_by(shard.team.rank)
        # all parameters, by group
        self._groups = _by_group(shard)
        # id of a parameter -> index of its group
        self._group_of = {id(p): g for g, group in enumerate(shard.optim.param_groups) for p in group["params"]}
        # whether this iteration has begun, and something of it been stepped
        self._begun = self._stepped = False

    def check_groups_unchanged(self) -> None:
        """RuntimeError if a parameter has come, gone or changed its place since the owners were fixed (ZERO-025)."""
        now = _by_group(self._shard)
        if _ids(now) != _ids(self._groups):
            raise RuntimeError(
                "Parameters of the optimizer's groups were added, taken out or moved to other places, which "
                "overlap_with_ddp=True does not allow: buckets and owners are fixed. Change settings of the groups as "
                "they are, build another optimizer, or step without overlap."
            )

    def begin(self) -> None:
        """Begin an iteration with the settings that the exposed groups have now (ZERO-031)."""
        optim = self._shard.optim
        copy_settings(self._shard.exposed.param_groups, optim.param_groups)
        optim.state = self._shard.exposed.state  # which a user may have replaced
        self._begun, self._stepped = True, False

    def step(self, gradients: Sequence[torch.Tensor | None]) -> None:
        """Step the parameters of the shard that have a gradient here; the others and their states stay untouched."""
        if len(gradients) != len(self._owned):
            raise AssertionError(f"{len(gradients)} gradients for a shard of {len(self._owned)} parameters")
        pairs = [(p, g) for p, g in zip(self._owned, gradients, strict=True) if g is not None]
        self.step_pairs([parameter for parameter, _ in pairs], [gradient for _, gradient in pairs])

    def step_pairs(self, parameters: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor]) -> None:
        """Step these parameters of the shard with these gradients. Every ``.grad`` is what it was afterwards."""
        if not self._begun:
            self.begin()
        self._stepped = True
        optim = self._shard.optim
        in_parts = is_of_torch(optim)
        seen = parameters if in_parts else self._owned
        kept: list[torch.Tensor | None] = [parameter.grad for parameter in seen]
        begun = [] if in_parts else noted(optim.param_groups)
        try:
            for parameter in seen:
                parameter.grad = None
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.grad = gradient
            with self._shown(parameters) if in_parts else nullcontext():
                step_of(optim)
        finally:
            for parameter, before in zip(seen, kept, strict=True):
                parameter.grad = before
            if not in_parts:  # torch's own write nothing there
                self._shard.counts.look(begun, optim.param_groups)

    @contextmanager
    def _shown(self, parameters: Sequence[torch.Tensor]) -> Iterator[None]:
        """Let the groups hold these parameters only."""
        optim = self._shard.optim
        groups = optim.param_groups
        whole = [group["params"] for group in groups]
        for group in groups:
            group["params"] = []
        for parameter in parameters:
            groups[self._group_of[id(parameter)]]["params"].append(parameter)
        try:
            with small_ones_at_once(optim):
                yield
        finally:
            for group, members in zip(groups, whole, strict=True):
                group["params"] = members

    def end(self) -> None:
        """End the iteration: settings that the local optimizer changed become visible."""
        if not self._stepped:
            self.step_pairs([], [])  # a rank that owns nothing counts the iteration all the same
        copy_settings(self._shard.optim.param_groups, self._shard.exposed.param_groups)
        self._shard.exposed.state = self._shard.optim.state
        self._begun = self._stepped = False
        self._shard.steps_since_consolidation += 1
        # a learning-rate scheduler looks for this mark of step(), and would warn that nobody has called it
        self._shard.exposed._opt_called = True  # type: ignore[attr-defined]


def _by_group(shard: Shard) -> list[list[torch.Tensor]]:
    return [list(group["params"]) for group in shard.exposed.param_groups]


def _ids(groups: list[list[torch.Tensor]]) -> list[list[int]]:
    return [list(map(id, members)) for members in groups]


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
    def in_parts(self) -> bool:
        """Whether the shard may be stepped a bucket at a time; else ``step`` is to be called once."""
        return is_of_torch(self.shard.optim)

    @property
    def next_group(self) -> Any:
        """The process group of the next step, on which uneven inputs are met."""
        leader = None if self._leader is None else self._leader()
        return self.shard.team.group if leader is None else leader.join_process_group

    def fix_owners(self, plan: ShardPlan) -> None:
        """Name the owners before the first overlapped step. With a second model around the same parameters, which
        has a hook of its own, their states go over to the owners that its buckets have."""
        if plan.world != self.shard.team.size or list(plan.numels) != numels_of(self.shard.parameters()):
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
        self._initialized().check_groups_unchanged()
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
