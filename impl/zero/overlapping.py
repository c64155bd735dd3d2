"""What overlap mode adds to the optimizer: its lifecycle, and stepping a part of the shard at a time."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import torch

from ..comm.ranks import Team
from ..join.hooks import Joinable
from ..join.session import Session
from .at_once import small_ones_at_once
from .group_counts import noted
from .joining import Joining, shown_gradients
from .partition import ShardPlan
from .shard import ByGroup, Shard, ids_by_group, is_of_torch, numels_of, step_of


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


class Overlap:
    """An optimizer that steps inside DDP's backward, as the hooks' session sees it; ``zero.overlap`` holds it.

    ``name_owners`` comes first. An iteration is ``begin``, any number of ``step``, ``end``, and amounts to one step of
    the optimizer. One of torch's own may be given a part after the other, since all that it keeps belongs to a
    parameter: it is shown that part's parameters only. What others keep beside that (lists of parameters, counters)
    nobody can know, so they are given all gradients at once.
    """

    def __init__(self, shard: Shard, joining: Joining) -> None:
        #: who owns what, over which ranks
        self.shard = shard
        #: for inspection by the user
        self.info = OverlapInfo()
        #: whether the owners are fixed; what follows belongs to them
        self.initialized = False
        self._owned: list[torch.Tensor] = []
        # all parameters
        self._groups: ByGroup = []
        # id of a parameter of ours -> index of its group
        self._group_of: dict[int, int] = {}
        #: what is different inside a join context
        self.joining = joining
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

    # --- owners

    def name_owners(self, team: Team, plan: ShardPlan) -> None:
        """Share the state over a group from now on, with these owners; call it on every rank of that group.

        The first call, before the first overlapped step, makes the local optimizer. In later ones states go over to
        their new owners.
        """
        shard = self.shard
        if plan.world != team.size or list(plan.numels) != numels_of(shard.parameters()):
            raise AssertionError("the overlap plan is one of other parameters or of another number of ranks")
        if self.initialized:
            shard.move_to(team, plan)
        else:
            shard.fix_owners(team, plan)
            self.initialized = True
            self.info.status = OverlapState.INITIALIZED
        self._owned, self._groups = shard.owned_by(team.rank), shard.by_group()
        self._group_of = {id(p): g for g, group in enumerate(shard.optim.param_groups) for p in group["params"]}

    def _check_groups_unchanged(self) -> None:
        """RuntimeError if a parameter has come, gone or changed its place since the owners were fixed (ZERO-025)."""
        if ids_by_group(self.shard.by_group()) != ids_by_group(self._groups):
            raise RuntimeError(
                "Parameters of the optimizer's groups were added, taken out or moved to other places, which "
                "overlap_with_ddp=True does not allow: buckets and owners are fixed. Change settings of the groups as "
                "they are, build another optimizer, or step without overlap."
            )

    # --- an iteration

    def begin(self, session: Session | None) -> None:
        """Begin an iteration with the settings that the exposed groups have now (ZERO-031); inside a join context
        joined ranks are told of them."""
        if not self.initialized:
            raise AssertionError("an overlapped step begins before the owners are fixed")
        self._check_groups_unchanged()
        self.shard.check_trainability_unchanged()
        if session is not None:
            self.joining.share_settings(session)
        self.shard.take_changes()

    def step_own(self, gradients: Sequence[torch.Tensor | None]) -> None:
        """An iteration of which only these gradients are known here: step the parameters of the shard that have one.

        The others and their states stay untouched.
        """
        if len(gradients) != len(self._owned):
            raise AssertionError(f"{len(gradients)} gradients for a shard of {len(self._owned)} parameters")
        self.begin(None)
        self.step({p: g for p, g in zip(self._owned, gradients, strict=True) if g is not None})

    def step(self, gradients: Mapping[torch.Tensor, torch.Tensor]) -> None:
        """Step these parameters of the shard with their gradients. Every ``.grad`` is what it was afterwards."""
        optim = self.shard.optim
        if self.in_parts:
            with shown_gradients(list(gradients.items())), self._shown(gradients):
                step_of(optim)
            return
        begun = noted(optim.param_groups)
        try:
            with shown_gradients([(parameter, gradients.get(parameter)) for parameter in self._owned]):
                step_of(optim)
        finally:
            self.shard.counts.look(begun)

    @contextmanager
    def _shown(self, parameters: Iterable[torch.Tensor]) -> Iterator[None]:
        """Let the groups hold these parameters only."""
        optim = self.shard.optim
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
        self.shard.show_changes()
        self.shard.steps_since_consolidation += 1
        # a learning-rate scheduler looks for this mark of step(), and would warn that nobody has called it
        self.shard.exposed._opt_called = True  # type: ignore[attr-defined]
