"""Who owns which parameters, the local optimizer over one's own, and the state of all: gathered, saved and loaded."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch

from ..comm.ranks import GroupRank, Team
from . import checkpoint
from .arguments import Group
from .groups import copy_settings
from .overlapping import OverlapInfo, PartialSteps
from .partition import ShardPlan

logger = logging.getLogger(__name__)


class Sharded(torch.optim.Optimizer):
    """The side of ``ZeroRedundancyOptimizer`` that keeps this rank's shard and its state.

    What is declared without a value is supplied by the constructor.
    """

    #: the ordinary optimizer over this rank's own parameters; in overlap mode it comes with the owners
    optim: torch.optim.Optimizer
    #: how it is made
    _constructor: Callable[..., torch.optim.Optimizer]
    _defaults: dict[str, Any]
    #: who shares the state, and who owns what
    _team: Team
    _plan: ShardPlan
    _device: torch.device
    #: overlap mode only; None says that this optimizer steps by itself
    _overlap_info: OverlapInfo | None
    #: overlap mode only; None until the owners are fixed
    _partial_steps: PartialSteps | None = None
    #: every parameter's state after consolidation on its target, else None; and how many steps ago that was
    _consolidated: checkpoint.States | None = None
    _steps_since_consolidation = 0

    def _parameters(self) -> list[torch.Tensor]:
        """All parameters in global order: group after group."""
        return [parameter for group in self.param_groups for parameter in group["params"]]

    def _shard(self, rank: int) -> list[torch.Tensor]:
        """The parameters that ``rank`` owns."""
        parameters = self._parameters()
        return [parameters[index] for index in self._plan.owned_by(rank)]

    def _owned_by_any(self, ranks: Collection[int]) -> list[torch.Tensor]:
        """The parameters that some ranks own, in global order: one pass, however many ranks they are."""
        wanted = set(ranks)
        return [p for p, owner in zip(self._parameters(), self._plan.owners, strict=True) if owner in wanted]

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

    # --- checkpoints

    def _check_overlap_initialized(self) -> None:
        if self._overlap_info is not None and self._partial_steps is None:
            raise RuntimeError(
                "With overlap_with_ddp=True the optimizer's state does not exist before the first backward pass with "
                "the overlap hook registered. Run one iteration first."
            )

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
