"""ZeroRedundancyOptimizer: each rank steps its own parameters with any ordinary optimizer and sends them round."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ..comm.collectives import all_gather_object
from ..comm.pending import Watch
from ..comm.ranks import GroupRank, Team
from ..join.hooks import Joinable, JoinHook
from . import checkpoint
from .arguments import Group, check_alike, checked_group, checked_groups, local_constructor
from .at_once import small_ones_at_once
from .compat import SENT_FROM_BACKWARD, CompatibleNames
from .groups import copy_settings, take_settings
from .joining import Joining
from .overlapping import OverlapInfo, OverlapState, PartialSteps, counters
from .partition import ShardPlan
from .publish import Publisher

logger = logging.getLogger(__name__)

Closure = Callable[[], Any]


class ZeroRedundancyOptimizer(torch.optim.Optimizer, Joinable, CompatibleNames):
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
        Joinable.__init__(self)
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
        self._device: torch.device = self._parameters()[0].device
        self._joining = Joining(self, team, self._device)
        # overlap mode only; None says that this optimizer steps by itself
        self._overlap_info = OverlapInfo() if overlap_with_ddp else None
        self._partial_steps: PartialSteps | None = None
        # requires_grad of every parameter at the last look, by global index
        self._trainable: tuple[bool, ...] = ()
        # whether each parameter has ever required a gradient, here or (in a join context) on a live rank
        self._sent: tuple[bool, ...] = ()
        # the transfers of a step; None when they must be made anew
        self._publisher: Publisher | None = None
        # every parameter's state after consolidation on its target, else None; and how many steps ago that was
        self._consolidated: checkpoint.States | None = None
        self._steps_since_consolidation = 0
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

    # --- the shard

    def _parameters(self) -> list[torch.Tensor]:
        """All parameters in global order: group after group."""
        return [parameter for group in self.param_groups for parameter in group["params"]]

    def _shard(self, rank: int) -> list[torch.Tensor]:
        """The parameters that ``rank`` owns."""
        parameters = self._parameters()
        return [parameters[index] for index in self._plan.owned_by(rank)]

    def _local_group(self, group: Group, owners: Sequence[int], rank: int) -> Group:
        """The part of a group that ``rank`` owns; ``owners`` are those of the group's parameters."""
        mine = [parameter for parameter, owner in zip(group["params"], owners, strict=True) if owner == rank]
        return {**group, "params": mine}

    def _local_groups(self, rank: int) -> list[Group]:
        owners = iter(self._plan.owners)
        return [self._local_group(group, [next(owners) for _ in group["params"]], rank) for group in self.param_groups]

    def _build_local(self) -> None:
        self.optim = self._constructor(self._local_groups(self._team.rank), **self._defaults)
        self._show_settings_of(self.optim)
        self.state = self.optim.state

    def _show_settings_of(self, local: torch.optim.Optimizer) -> None:
        """The local optimizer fills in its own defaults; schedulers read them here, in groups and in ``defaults``."""
        copy_settings(local.param_groups, self.param_groups)
        self.defaults = {**self._defaults, **local.defaults}

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

    def _hide_untouchable(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Take the gradients away from parameters that are not sent: stepping them would set the ranks apart."""
        if all(self._sent):
            return []
        hidden = []
        for parameter, goes in zip(self._parameters(), self._sent, strict=True):
            if not goes and parameter.grad is not None:
                hidden.append((parameter, parameter.grad))
                parameter.grad = None
        return hidden

    def _look_at_trainability(self) -> None:
        """Notice a change of ``requires_grad`` since the last look (ZERO-013)."""
        now = tuple([parameter.requires_grad for parameter in self._parameters()])
        if now == self._trainable:
            return
        if self._trainable and len(now) == len(self._trainable):
            changed = _places_that_differ(now, self._trainable)
            logger.warning("requires_grad of parameter(s) %s has changed; the transfers are made anew.", changed)
        self._trainable = now
        self._also_send(now)

    def _also_send(self, more: Sequence[bool]) -> None:
        before = [*self._sent, *([False] * (len(more) - len(self._sent)))]
        sent = tuple(old or new for old, new in zip(before, more, strict=True))
        if sent != self._sent:
            self._sent = sent
            self._publisher = None

    def _sent_parameters(self) -> tuple[bool, ...]:
        return self._sent

    def _take_news(self, settings: Sequence[Group], sent: Sequence[bool]) -> None:
        """On a joined rank: take over what live ranks have changed."""
        take_settings(settings, self.param_groups)
        self._also_send(sent)

    def _current_publisher(self) -> Publisher:
        if self._publisher is None or self._publisher.stale():
            self._publisher = Publisher(
                self._team, self._parameters(), self._plan.owners, self._sent, self.parameters_as_bucket_view
            )
        return self._publisher

    def _sync_params(self, watch: Watch | None = None) -> None:
        """Send every owner's parameters to all ranks."""
        if self._overlap_info is not None:
            raise AssertionError(SENT_FROM_BACKWARD)
        self._current_publisher().publish(watch)

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

        States go to their new owners. Those that only ranks outside the new group held are lost, with a warning.
        """
        held: checkpoint.States = {}
        mine = checkpoint.snapshot(self._own_states())
        for part in all_gather_object(team, mine, self._device, "zero: states on the move"):
            held.update(part)
        parameters = self._parameters()
        lost = [index for index in range(len(parameters)) if index not in held]
        if lost and held and team is not self._team:  # within one group nothing is lost: those have no state yet
            logger.warning("The new process group holds no optimizer state of parameter(s) %s: they start anew.", lost)
        self._team, self._plan = team, plan
        self.process_group, self.world_size, self.rank = team.group, team.size, team.rank
        counted = counters(self.optim)
        self._build_local()
        vars(self.optim).update(counted)
        self._load_local({parameters[index]: held[index] for index in plan.owned_by(team.rank) if index in held})
        self._publisher = None
        self._joining = Joining(self, team, self._device)
        self._partial_steps = PartialSteps(self)

    def _check_trainability_unchanged(self) -> None:
        """RuntimeError if ``requires_grad`` has changed since the owners were fixed (ZERO-027)."""
        if self._partial_steps is None:
            return
        now = tuple([parameter.requires_grad for parameter in self._parameters()])
        if now != self._trainable:
            raise RuntimeError(
                f"requires_grad of parameter(s) {_places_that_differ(now, self._trainable)} has changed, which "
                "overlap_with_ddp=True does not allow: DDP's buckets and the owners are fixed. Freeze parameters "
                "before you construct DDP and the optimizer."
            )

    def _check_overlap_initialized(self) -> None:
        if self._overlap_info is not None and self._partial_steps is None:
            raise RuntimeError(
                "With overlap_with_ddp=True the optimizer's state does not exist before the first backward pass with "
                "the overlap hook registered. Run one iteration first."
            )

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

    def _consolidate(self, to: GroupRank) -> None:
        copy_settings(self.param_groups, self.optim.param_groups)
        self._consolidated = None  # frees the last one before the next is gathered
        self._consolidated = checkpoint.gather_states(self._team, self._own_states(), to, self._device)
        self._steps_since_consolidation = 0

    def _own_states(self) -> checkpoint.States:
        """The states that this rank holds, by global index."""
        index_of = {id(parameter): index for index, parameter in enumerate(self._parameters())}
        return {index_of[id(key)]: state for key, state in self.optim.state.items() if id(key) in index_of}

    def state_dict(self) -> dict[str, Any]:
        """The state of all parameters, in the format of an ordinary optimizer over the same groups.

        RuntimeError on a rank to which the state has not been consolidated.
        """
        self._check_overlap_initialized()
        if self._consolidated is None:
            raise RuntimeError(
                f"The optimizer state is sharded and rank {self._team.rank} does not hold all of it: call "
                f"consolidate_state_dict(to={self._team.rank}) on every rank first."
            )
        if self._steps_since_consolidation:
            logger.warning(
                "state_dict() returns the state of the last consolidation, which is %d step(s) old: call "
                "consolidate_state_dict() again to get the present one.",
                self._steps_since_consolidation,
            )
        parameters = self._parameters()
        shared = {key: state for key, state in self.optim.state.items() if not isinstance(key, torch.Tensor)}
        whole = {**{parameters[index]: state for index, state in self._consolidated.items()}, **shared}
        # the base class packs whatever self.state holds, and runs the user's state-dict hooks
        own, self.state = self.state, whole  # type: ignore[assignment]
        try:
            return super().state_dict()
        finally:
            self.state = own

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a global state (from ``state_dict`` here, from another world size, or from an ordinary optimizer).

        Each rank takes the states of its own parameters. The argument is neither changed nor kept (ZERO-018).
        """
        self._check_overlap_initialized()
        owned = set(self._plan.owned_by(self._team.rank))
        super().load_state_dict(checkpoint.own_part(state_dict, owned))
        self._load_local(self.state)
        self._consolidated = None

    def _load_local(self, states: Mapping[Any, Any]) -> None:
        """Let the local optimizer take these states (by parameter) and the exposed settings."""
        groups = self._local_groups(self._team.rank)
        place_of = {id(p): place for place, p in enumerate(p for group in groups for p in group["params"])}
        packed = {place_of[id(key)] if isinstance(key, torch.Tensor) else key: state for key, state in states.items()}
        packed_groups = [{**group, "params": [place_of[id(p)] for p in group["params"]]} for group in groups]
        self.optim.load_state_dict({"state": packed, "param_groups": packed_groups})
        self.state = self.optim.state

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


def _places_that_differ(now: Sequence[bool], before: Sequence[bool]) -> list[int]:
    return [place for place, (new, old) in enumerate(zip(now, before, strict=True)) if new != old]
