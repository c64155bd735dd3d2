"""ZeroRedundancyOptimizer: each rank steps its own parameters with any ordinary optimizer and sends them round."""

from __future__ import annotations

import copy
import functools
import logging
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from ..arguments import flag
from ..comm.ranks import GroupRank, Team
from ..join.hooks import BrokenOff, Follower, FollowingHook, JoinHook
from . import checkpoint, compat
from .arguments import (
    check_alike,
    check_own_memory,
    checked_group,
    checked_groups,
    local_constructor,
)
from .groups import Group
from .joining import ACTS, CONSOLIDATE, HOOKS, STEP, Joining
from .mirror import Mirror
from .overlapping import Overlap
from .publisher import Publisher
from .shard import Shard

logger = logging.getLogger(__name__)

Closure = Callable[[], Any]


class ZeroRedundancyOptimizer(torch.optim.Optimizer, Follower):
    """Wraps any optimizer and shards its state over the ranks of a process group.

    Every parameter is owned by one rank. ``step`` updates the parameters of this rank with a local optimizer
    (``optim``) that knows only them, and then sends every owner's parameters to all ranks. The result is that of the
    ordinary optimizer, at about 1/N of its state. Gradients must be equal on all ranks before the step, as DDP leaves
    them.

    Args:
        params: parameters, or parameter groups; dense, of one dtype and one type of device.
        optimizer_class: a ``torch.optim.Optimizer`` class.
        process_group: the ranks that share the state; the whole world by default.
        parameters_as_bucket_view: make the parameters views of one flat tensor per owner, which saves a copy per step.
            Without it every parameter keeps the storage that it has.
        overlap_with_ddp: step inside DDP's backward pass. The optimizer does nothing by itself then: hand it to
            ``hook_with_zero_step`` or ``hook_with_zero_step_interleaved``. Views are not used in this mode.
        **defaults: passed to ``optimizer_class``.

    Inside a join context a rank that has run out of inputs goes on stepping its shard, with the gradients, the
    settings and the loss of a live rank, so that uneven inputs give what one process would (ZERO-020 … 022). Its own
    ``.grad`` and ``requires_grad`` stay as they were; its settings (``lr`` …) follow the live ranks', and hooks before
    and after a step are called on it, too. What the program itself changes between two steps of a block
    (``p.clamp_()``, entries of ``state``) does not reach it, with or without overlap: make such changes before the
    block or after it. Nor does what follows the last step: its settings are then those of that step, and a scheduler
    that was stepped in the block has counted fewer steps than elsewhere. Before the next block give all ranks the same
    settings.

    A parameter that has never required a gradient, nor had one in a step, is not sent by an optimizer of torch's own,
    which does not move it; one that is frozen later still is. Parameters that have memory in common (views of one
    tensor, or one that is listed twice) have one owner; where they come to share it later and have several, the next
    step is a RuntimeError.
    """

    def __init__(
        self,
        params: Any,
        optimizer_class: type[torch.optim.Optimizer],
        process_group: Any | None = None,
        parameters_as_bucket_view: bool = False,
        overlap_with_ddp: bool = False,
        **defaults: Any,
    ) -> None:
        parameters_as_bucket_view = flag("parameters_as_bucket_view", parameters_as_bucket_view)
        overlap_with_ddp = flag("overlap_with_ddp", overlap_with_ddp)
        groups = checked_groups(params)
        constructor = local_constructor(optimizer_class, overlap_with_ddp)
        team = Team.of(process_group)
        Follower.__init__(self)
        self._under_construction = True
        super().__init__(groups, defaults)
        self._under_construction = False

        self.global_rank = team.global_rank(team.rank)
        self.parameters_as_bucket_view = parameters_as_bucket_view and not overlap_with_ddp
        #: who owns what, the local optimizer and its state
        self.shard = Shard(self, team, constructor, defaults)
        self._publisher = Publisher(self.shard, self.parameters_as_bucket_view)
        self._joining = Joining(self.shard, self._publisher)
        #: what the overlap hooks drive; None says that this optimizer steps by itself
        self.overlap = Overlap(self.shard, self._joining) if overlap_with_ddp else None
        #: what ``regroup`` goes on from; None says that a lost rank takes its shard with it
        self.mirror: Mirror | None = None
        if self.overlap is not None:
            self._overlap_info = self.overlap.info  # torch's name
            check_own_memory(self.shard.parameters())
            if parameters_as_bucket_view:
                logger.warning("parameters_as_bucket_view=True is ignored together with overlap_with_ddp=True.")
            # schedulers and users read the settings before the owners are fixed; bad ones show here and not later
            self.shard.show_defaults()
        else:
            self.shard.build_local()
            self.shard.look_at_trainability()
            if self.parameters_as_bucket_view:
                self._publisher.transfers()

    @property
    def optim(self) -> torch.optim.Optimizer:
        """The ordinary optimizer over this rank's own parameters; in overlap mode it comes with the owners."""
        return self.shard.optim

    def add_param_group(self, param_group: Group) -> None:
        """Add a group; call it on every rank. No parameter that is already here changes its owner (ZERO-014).

        RuntimeError in overlap mode and inside a join context.
        """
        if self._under_construction:
            super().add_param_group(param_group)
            return
        if self.overlap is not None:
            raise RuntimeError(
                "add_param_group() is not possible with overlap_with_ddp=True, because owners follow DDP's buckets, "
                "which are fixed. Give all groups when you construct the optimizer."
            )
        if self._join_session is not None:
            raise RuntimeError(
                "add_param_group() inside a join context: ranks that have run out of inputs would not hear of it and "
                "could not follow. Call it on every rank before the block or after it."
            )
        self.shard.look_at_parameters()
        group = checked_group(param_group, len(self.param_groups))
        # not with the others: a group may be of another dtype
        check_alike(group["params"])
        super().add_param_group(group)
        try:
            self.shard.extend(self.param_groups[-1])
        except BaseException:
            del self.param_groups[-1]
            raise

    # --- the step

    @staticmethod
    def profile_hook_step(func: Callable[..., Any]) -> Callable[..., Any]:
        """What torch makes of ``step``; inside a join context joined ranks call the hooks before it when live ones do.

        They are always told of it: a hook may be there on some ranks only.
        """
        hooked = torch.optim.Optimizer.profile_hook_step(func)

        @functools.wraps(hooked)
        def announced(zero: ZeroRedundancyOptimizer, *args: Any, **kwargs: Any) -> Any:
            session = zero._join_session
            if session is not None and zero.overlap is None:
                session.begin(zero, HOOKS)
            return hooked(zero, *args, **kwargs)

        return announced

    def step(self, closure: Closure | None = None, **kwargs: Any) -> Any:
        """Update all parameters; returns what the local optimizer returns.

        ``closure`` and further keywords are passed to the local optimizer. In overlap mode this does nothing, returns
        None and logs a warning, because the step happens inside backward.
        """
        if torch.compiler.is_compiling():
            from ..comm.uncompiled import call_uncompiled

            return call_uncompiled(self.step, closure, **kwargs)
        if self.overlap is not None:
            logger.warning("step() does nothing with overlap_with_ddp=True: the step has happened inside backward().")
            return None
        session = self._join_session
        if session is not None:
            return self._joining.step(session, closure, kwargs)
        if closure is not None:
            closure = self._publisher.between_evaluations(closure)
        loss = self.shard.step(closure, **kwargs)
        self._publisher.publish()
        self.shard.keep_copy()
        return loss

    def _local_step(
        self, gradients: Sequence[torch.Tensor | None] | None = None, closure: Closure | None = None, **kwargs: Any
    ) -> Any:
        """Step this rank's shard; nothing is sent.

        With ``gradients`` (overlap mode: one per parameter of the shard, None for "leave alone") only part of it.
        """
        if gradients is not None:
            if self.overlap is None or not self.overlap.initialized:
                raise AssertionError("gradients are given to a local step, but the optimizer does not overlap with DDP")
            if closure is not None:
                raise AssertionError("a local step takes gradients or a closure, not both")
            self.overlap.step_own(gradients)
            return None
        return self.shard.step(closure, **kwargs)

    # --- overlap with DDP's backward

    def _init_zero_for_overlap(self, *_: Any) -> None:
        """Refused: torch's hooks call it; ours name the owners without it."""
        raise AssertionError("owners are fixed late only with overlap_with_ddp=True, and by the overlap hooks alone")

    # --- checkpoints

    def consolidate_state_dict(self, to: int = 0) -> None:
        """Gather every rank's state on group rank ``to``, on the CPU; call it on every rank (in a join context on every
        live one). Afterwards ``state_dict`` works on that rank.

        A hook after ``step`` may call it, too; in a join context it does so on ranks without inputs as well.
        """
        self._check_overlap_initialized()
        if to not in range(self.shard.team.size):
            raise ValueError(f"to={to!r} is not a rank of this optimizer's group of {self.shard.team.size}.")
        session = self._join_session
        if self._joining.inside_unlisted:
            raise RuntimeError(
                "consolidate_state_dict() inside a join context that does not list the optimizer: ranks that have run "
                "out of inputs could not follow. Write Join([ddp, optimizer])."
            )
        if session is not None and session.team.group is not self.process_group:
            raise RuntimeError(
                "consolidate_state_dict() between a move of the model to another process group and the next backward, "
                "which moves the optimizer: its state still lies on the ranks of the former group. Consolidate after "
                "one iteration on the new group, or before the model is moved."
            )
        if session is None:
            self.shard.consolidate(GroupRank(to))
        elif session.shadowing:  # in a hook after a step, which live ranks call, too
            session.follow_to(self, CONSOLIDATE)
        else:
            self._joining.consolidate(session, to)

    def _check_overlap_initialized(self) -> None:
        if self.overlap is not None and not self.overlap.initialized:
            raise RuntimeError(
                "With overlap_with_ddp=True the optimizer's state does not exist before the first backward pass with "
                "the overlap hook registered. Run one iteration first."
            )

    def state_dict(self) -> dict[str, Any]:
        """The state of all parameters, in the format of an ordinary optimizer over the same groups.

        RuntimeError on a rank to which the state has not been consolidated.
        """
        self._check_overlap_initialized()
        whole = self.shard.whole_state()
        # the base class packs whatever self.state holds, and runs the user's state-dict hooks
        own, self.state = self.state, whole  # type: ignore[assignment]
        first = self.register_state_dict_post_hook(lambda _, made: made | self.shard.further_entries(), prepend=True)
        try:
            return super().state_dict()
        finally:
            first.remove()
            self.state = own

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a global state (from ``state_dict`` here, from another world size, or from an ordinary optimizer).

        Each rank takes the states of its own parameters. The argument is neither changed nor kept (ZERO-018).
        RuntimeError inside a join context.
        """
        self._check_overlap_initialized()
        if self._join_session is not None or self._joining.inside_unlisted:
            raise RuntimeError(
                "load_state_dict() inside a join context: ranks that have run out of inputs would go on from the state "
                "that they have. Call it on every rank before the block or after it."
            )
        self.shard.look_at_parameters()
        whole: dict[str, Any] = {}

        def without_states(_: Any, given: dict[str, Any]) -> dict[str, Any]:
            whole.update(given)
            return {**given, "state": {}}

        def load_own(_: Any) -> None:
            self.state = self.shard.optim.state
            self.shard.load_local(
                checkpoint.own_states(whole, self.shard.parameters(), owned), checkpoint.further_entries(whole)
            )

        owned = set(self.shard.plan.owned_by(self.shard.team.rank))
        # after the user's hooks, which may make another dictionary of it; only the local optimizer knows how states are
        # loaded: to load one here, too, would cast them to the parameters' dtype
        last = self.register_load_state_dict_pre_hook(without_states)
        # before the user's, which may change what has been loaded
        first = self.register_load_state_dict_post_hook(load_own, prepend=True)
        try:
            super().load_state_dict(state_dict)
        finally:
            last.remove()
            first.remove()
        self.shard.forget()

    def keep_mirror(self, distance: int = 1) -> None:
        """Copy each rank's shard to another rank after every step from now on, so that ``regroup`` can go on without
        ranks that are lost. Call it on every rank, outside every join context.

        A rank keeps its shard of the last two steps, and that of the rank ``distance`` before it: four times parameters
        and state of a shard (Adam: 12/N of the parameters' bytes on N ranks). A step sends one shard to another rank
        (Adam: 3/N), and waits for it; with one rank nothing is kept or sent. What the program changes between two steps
        is not in the copies: call it again after ``load_state_dict`` or a change of parameters.

        Args:
            distance: the copies of group rank r lie on rank r + ``distance``, modulo their number. Where several ranks
                share a host, as many as those are: a host that is lost then does not take the copies with it.

        Raises:
            ValueError: the distance leads to no other rank, or ``overlap_with_ddp=True``. RuntimeError: inside a join
                context. TypeError, in a step: the local optimizer's state cannot be pickled.
        """
        if self.overlap is not None:
            raise ValueError(
                "keep_mirror() is not possible with overlap_with_ddp=True, where the steps happen inside backward: "
                "it could not be told whether the last one counts. Train without overlap, or go on from checkpoints."
            )
        if self._join_session is not None:
            raise RuntimeError(
                "keep_mirror() inside a join context: ranks that have run out of inputs could not follow. Call it on "
                "every rank before the block."
            )
        farthest = max(self.shard.team.size - 1, 1)
        if type(distance) is not int or not 1 <= distance <= farthest:
            raise ValueError(
                f"distance={distance!r} leads to no other rank of the optimizer's group: give a whole number from 1 to "
                f"{farthest}."
            )
        self.mirror = Mirror(self.shard, self._publisher, distance, self.mirror)

    # --- copies

    def __deepcopy__(self, memo: dict[int, Any]) -> ZeroRedundancyOptimizer:
        """One over copies of the parameters, on the same ranks, which goes on from the same state.

        TypeError with ``overlap_with_ddp=True``: what steps it is the hook of another model.
        """
        if self.overlap is not None:
            raise TypeError(
                "An optimizer that is stepped in DDP's backward cannot be copied, because its hook belongs to one "
                "model. Build another one for the copy of the model."
            )
        shard = self.shard
        groups = copy.deepcopy([dict(group) for group in self.param_groups], memo)
        defaults, views = copy.deepcopy(shard.given_defaults, memo), self.parameters_as_bucket_view
        constructor: Any = shard.constructor
        twin = type(self)(groups, constructor, self.process_group, views, **defaults)
        twin.shard.become(shard, memo)
        return twin

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError(
            "A ZeroRedundancyOptimizer cannot be pickled, because each rank holds a part of its state: call "
            "consolidate_state_dict() and save state_dict()."
        )

    # --- joining

    def join_hook(self, **kwargs: Any) -> JoinHook:
        """The hook by which a rank without inputs follows the others' steps; keywords are ignored."""
        self._following_hook = _ZeROJoinHook(self)
        return self._following_hook

    @property
    def join_device(self) -> torch.device:
        """The device of the first parameter."""
        return self.shard.device

    @property
    def join_process_group(self) -> Any:
        """The optimizer's own process group; if it is stepped in backward and its model has moved, the model's."""
        return self.process_group if self.overlap is None else self.overlap.next_group

    # --- names of torch's

    @property
    def process_group(self) -> Any:
        """The group whose ranks share the state."""
        return self.shard.team.group

    @property
    def world_size(self) -> int:
        """How many ranks that are."""
        return self.shard.team.size

    @property
    def rank(self) -> int:
        """This rank's number in that group."""
        return self.shard.team.rank

    @property
    def _all_params(self) -> list[torch.Tensor]:
        """All parameters, group after group."""
        return self.shard.parameters()

    def _partition_parameters(
        self, params_per_rank: Sequence[Sequence[torch.Tensor]] | None = None
    ) -> list[list[Group]]:
        """The parameter groups of every rank, by rank; with an argument, those of that partition, checked."""
        return compat.partition_parameters(self.shard, params_per_rank)

    def _verify_params_per_rank(self, params_per_rank: Sequence[Sequence[torch.Tensor]]) -> None:
        """ValueError unless there is one list per rank and every parameter in it is one of ours (ZERO-029)."""
        compat.verify_params_per_rank(self.shard, params_per_rank)

    def _sync_params(self) -> None:
        """Send every owner's parameters to all ranks."""
        if self.overlap is not None:
            raise AssertionError(compat.SENT_FROM_BACKWARD)
        self._publisher.publish()

    def _broadcast_params_from_rank(self, rank: int) -> None:
        """Send the parameters that group rank ``rank`` owns; call it on every rank."""
        if self.overlap is not None:
            raise AssertionError(compat.SENT_FROM_BACKWARD)
        self._publisher.transfers().publish_of(GroupRank(rank))


class _ZeROJoinHook(FollowingHook):
    """Follows the steps of one ZeroRedundancyOptimizer (ZERO-019, ZERO-021)."""

    acts = ACTS
    leads = False

    def __init__(self, zero: Any) -> None:
        if not isinstance(zero, ZeroRedundancyOptimizer):
            raise AssertionError(
                "ZeRO's join hook serves a ZeroRedundancyOptimizer only, but it was given a "
                f"{type(zero).__name__}: let Join build it by listing the optimizer among the joinables."
            )
        self._shard = zero.shard
        super().__init__()

    @property
    def zero(self) -> ZeroRedundancyOptimizer:
        """The optimizer; it keeps the hook."""
        return cast("ZeroRedundancyOptimizer", self._shard.exposed)

    def main_hook(self) -> None:
        """Perform an optimizer step; nothing in a context, where joined ranks follow those of the others."""
        if self.zero._join_session is None:
            self.zero.step()

    def entered(self) -> None:
        """All ranks stand at one place."""
        self.zero._joining.enter()

    def broken_off(self) -> BrokenOff | None:
        """What an exception has ended of a step here."""
        return self.zero._joining.broken

    def follow(self, act: int) -> None:
        """Perform the shadow of an announced act."""
        session = self.zero._join_session
        if session is None:
            raise RuntimeError("ZeRO was asked to follow an act outside of a join context.")
        if act == STEP:
            self.zero._joining.shadow_step(session)
            self._call({**self.zero._optimizer_step_post_hooks, **_global_optimizer_post_hooks})
        elif act == HOOKS:
            self._call({**_global_optimizer_pre_hooks, **self.zero._optimizer_step_pre_hooks})
        else:
            self.zero._joining.consolidate(session, None)

    def _call(self, hooks: dict[int, Callable[..., Any]]) -> None:
        for hook in hooks.values():
            hook(self.zero, (self.zero,), {})
