"""ZeroRedundancyOptimizer: each rank steps its own parameters with any ordinary optimizer and sends them round."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..comm.ranks import GroupRank, Team
from ..join.hooks import Follower, JoinHook
from . import checkpoint
from .arguments import Group, check_alike, checked_group, checked_groups, local_constructor
from .at_once import small_ones_at_once
from .compat import CompatibleNames
from .groups import copy_settings
from .joining import Joining
from .overlapping import OverlapInfo, OverlapState, PartialSteps, counters
from .partition import ShardPlan
from .sending import Sending

logger = logging.getLogger(__name__)

Closure = Callable[[], Any]


class ZeroRedundancyOptimizer(Sending, Follower, CompatibleNames):
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

    Inside a join context a rank that has run out of inputs goes on stepping its shard, with the gradients and the
    settings of a live rank, so that uneven inputs give what one process would (ZERO-020 … 022). Its own ``.grad`` and
    ``requires_grad`` stay as they were; its settings (``lr`` …) follow the live ranks'.

    A parameter that has never required a gradient is neither stepped nor sent; one that is frozen later is still sent.
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
        groups = checked_groups(params)
        constructor = local_constructor(optimizer_class, overlap_with_ddp)
        team = Team.of(process_group)
        Follower.__init__(self)
        self._under_construction = True
        super().__init__(groups, defaults)
        self._under_construction = False

        self.process_group = team.group
        self.world_size = team.size
        self.rank = team.rank
        self.global_rank = team.global_rank(team.rank)
        self.parameters_as_bucket_view = parameters_as_bucket_view and not overlap_with_ddp
        self._team = team
        self._constructor = constructor
        self._defaults = defaults
        self._device = self._parameters()[0].device
        self._joining = Joining(self, team, self._device)
        self._overlap_info = OverlapInfo() if overlap_with_ddp else None
        self._plan = ShardPlan.greedy([p.numel() for p in self._parameters()], team.size)
        if overlap_with_ddp:
            if parameters_as_bucket_view:
                logger.warning("parameters_as_bucket_view=True is ignored together with overlap_with_ddp=True.")
            # schedulers and users read the settings before the owners are fixed; bad ones show here and not later
            empty = [{**group, "params": []} for group in self.param_groups]
            self._show_settings_of(constructor(empty, **defaults))
        else:
            self._build_local()
            self._look_at_trainability()
            if self.parameters_as_bucket_view:
                self._current_publisher()

    def add_param_group(self, param_group: Group) -> None:
        """Add a group; call it on every rank. No parameter that is already here changes its owner (ZERO-014).

        RuntimeError in overlap mode and inside a join context.
        """
        if self._under_construction:
            super().add_param_group(param_group)
            return
        if self._overlap_info is not None:
            raise RuntimeError(
                "add_param_group() is not possible with overlap_with_ddp=True, because owners follow DDP's buckets, "
                "which are fixed. Give all groups when you construct the optimizer."
            )
        if self._join_session is not None:
            raise RuntimeError(
                "add_param_group() inside a join context: ranks that have run out of inputs would not hear of it and "
                "could not follow. Call it on every rank before the block or behind it."
            )
        group = checked_group(param_group, len(self.param_groups))
        check_alike([*self._parameters(), *group["params"]])
        super().add_param_group(group)
        added = self.param_groups[-1]
        before = len(self._plan.owners)
        self._plan = self._plan.extended([parameter.numel() for parameter in added["params"]])
        self.optim.add_param_group(self._local_group(added, self._plan.owners[before:], self._team.rank))
        copy_settings(self.optim.param_groups[-1:], self.param_groups[-1:])
        self._consolidated = None
        self._look_at_trainability()
        self._publisher = None

    # --- the step

    def step(self, closure: Closure | None = None, **kwargs: Any) -> Any:
        """Update all parameters; returns what the local optimizer returns.

        ``closure`` and further keywords are passed to the local optimizer. In overlap mode this does nothing, returns
        None and logs a warning, because the step happens inside backward.
        """
        if self._overlap_info is not None:
            self._check_trainability_unchanged()
            logger.warning("step() does nothing with overlap_with_ddp=True: the step has happened inside backward().")
            return None
        session = self._join_session
        if session is not None:
            return self._joining.step(session, closure, kwargs)
        loss = self._local_step(closure=closure, **kwargs)
        self._sync_params()
        return loss

    def _local_step(
        self, gradients: Sequence[torch.Tensor | None] | None = None, closure: Closure | None = None, **kwargs: Any
    ) -> Any:
        """Step this rank's shard; nothing is sent.

        With ``gradients`` (overlap mode: one per parameter of the shard, None for "leave alone") only part of it.
        """
        if gradients is not None:
            if self._partial_steps is None:
                raise AssertionError("gradients are given to a local step, but the optimizer does not overlap with DDP")
            if closure is not None:
                raise AssertionError("a local step takes gradients or a closure, not both")
            self._partial_steps.step(gradients)
            return None
        copy_settings(self.param_groups, self.optim.param_groups)
        self._look_at_trainability()
        hidden = self._hide_untouchable()
        try:
            with small_ones_at_once(self.optim):
                loss = self.optim.step(**kwargs) if closure is None else self.optim.step(closure=closure, **kwargs)
        finally:
            for parameter, gradient in hidden:
                parameter.grad = gradient
        copy_settings(self.optim.param_groups, self.param_groups)
        self._steps_since_consolidation += 1
        return loss

    # --- overlap with DDP's backward

    def _init_zero_for_overlap(self, plan: ShardPlan) -> PartialSteps:
        """Fix the owners, once, before the first overlapped step; returns what steps parts of the shard."""
        if self._overlap_info is None:
            raise AssertionError("owners are fixed late only with overlap_with_ddp=True")
        if plan.world != self._team.size or plan.numels != self._plan.numels:
            raise AssertionError("the overlap plan is one of other parameters or of another number of ranks")
        self._plan = plan
        self._build_local()
        self._look_at_trainability()
        self._partial_steps = PartialSteps(self)
        self._overlap_info.status = OverlapState.INITIALIZED
        return self._partial_steps

    def _move_to(self, team: Team, plan: ShardPlan) -> None:
        """Share the state over a group from now on, with these owners; call it on every rank of that group.

        Each state goes from its old owner to its new one. Those that only ranks outside the new group held are lost,
        with a warning on the new owner.
        """
        mine = self._own_states()
        held = checkpoint.handed_over(team, mine, plan.owners, self._device)
        parameters, owned = self._parameters(), plan.owned_by(team.rank)
        lost = [index for index in owned if index not in held]
        if lost and (mine or held) and team is not self._team:  # within one group nothing is lost: those have none yet
            logger.warning("Nobody in the new process group holds the state of parameter(s) %s: they start anew.", lost)
        self._team, self._plan = team, plan
        self.process_group, self.world_size, self.rank = team.group, team.size, team.rank
        counted = counters(self.optim)
        self._build_local()
        vars(self.optim).update(counted)
        self._load_local({parameters[index]: held[index] for index in owned if index in held})
        self._publisher = None
        self._joining = Joining(self, team, self._device)
        self._partial_steps = PartialSteps(self)

    # --- checkpoints

    def consolidate_state_dict(self, to: int = 0) -> None:
        """Gather every rank's state on group rank ``to``, on the CPU; call it on every rank (in a join context on every
        live one). Afterwards ``state_dict`` works on that rank."""
        self._check_overlap_initialized()
        if not 0 <= to < self._team.size:
            raise ValueError(f"to={to} is no rank of this optimizer's process group, which has {self._team.size}.")
        session = self._join_session
        if self._joining.inside_unlisted:
            raise RuntimeError(
                "consolidate_state_dict() inside a join context that does not list the optimizer: ranks that have run "
                "out of inputs could not follow. Write Join([ddp, optimizer])."
            )
        if session is not None:
            self._joining.consolidate(session, to)
        else:
            self._consolidate(GroupRank(to))

    # --- joining

    def join_hook(self, **kwargs: Any) -> JoinHook:
        """The hook by which a rank without inputs follows the others' steps; keywords are ignored."""
        from .join_hook import _ZeROJoinHook

        return _ZeROJoinHook(self)

    @property
    def join_device(self) -> torch.device:
        """The device of the first parameter."""
        return self._device

    @property
    def join_process_group(self) -> Any:
        """The optimizer's own process group."""
        return self.process_group
