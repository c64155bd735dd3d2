"""DDP beginning anew: after unpickling, on another process group, or as a static graph."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import torch.distributed as dist

from ..comm.ranks import Team
from ..join import Joinable
from . import options
from .delayed import DelayedReduction
from .iteration import Iteration
from .mixed_precision import MixedPrecisionRun, _MixedPrecision
from .parts import Parts

if TYPE_CHECKING:
    from .wrapper import DistributedDataParallel

#: What belongs to this process and this moment, and is left out of a pickled object (DDP-155).
_OF_THIS_PROCESS = (
    "process_group", "reducer", "logger", "_delayed", "_mixed_precision_run", "_per_parameter", "_iteration",
    "_comm_hooks", "_buffer_hook", "_followed_config", "_join_binding",
)


class Renewal(Parts):
    """The side of ``DistributedDataParallel`` that rebuilds its reducer."""

    if TYPE_CHECKING:
        _reset_runtime_state: Callable[[], None]
        _build_reducer: Callable[[], None]

    def __getstate__(self) -> dict[str, Any]:
        """Everything but the handles of this process (DDP-155); RuntimeError unless on the default group (DDP-156)."""
        self._check_default_group()
        state = copy.copy(self.__dict__)
        for name in _OF_THIS_PROCESS:
            state.pop(name, None)
        delayed = self._delayed
        state["_delayed_names"] = None if delayed is None else delayed.names(self.module, self._log_and_throw)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Rebuild the reducer on the default group, with the stored settings (DDP-158, DDP-159)."""
        self.process_group = Team.of(None).group
        self._iteration = Iteration(cast(Joinable, self))
        state = dict(state)
        delayed = state.pop("_delayed_names", None)
        super().__setstate__(state)  # type: ignore[misc]
        self.__dict__.setdefault("require_forward_param_sync", True)
        self.__dict__.setdefault("require_backward_grad_sync", True)
        Joinable.__init__(cast(Joinable, self))
        self.__dict__.update(state)
        self._reset_runtime_state()
        static_graph, self.static_graph = self.static_graph, False
        self.logger = None
        self._mixed_precision_run = None if self.mixed_precision is None else self._run_lowered(self.mixed_precision)
        self._build_reducer()
        self._delayed = DelayedReduction.found(self._iteration, self.module, delayed)
        if static_graph:
            self._set_static_graph()

    def _run_lowered(self, config: _MixedPrecision) -> MixedPrecisionRun:
        return MixedPrecisionRun(self.module, self.parameters_to_ignore, config)

    def _check_default_group(self) -> None:
        try:
            default = dist.group.WORLD
        except (RuntimeError, ValueError):
            default = None
        if default is None or self.process_group is not default:
            self._log_and_throw(
                RuntimeError,
                "Pickling needs a model on the default process group: a group cannot be stored, and the restored "
                "model must find its own again. Call init_process_group and leave process_group out of the "
                "constructor.",
            )

    def _update_process_group(self, new_process_group: Any) -> None:
        """Average over another group from now on; non-members keep theirs and must not train on (DDP-162 … 164).

        Communication hooks keep whatever group is in their state (DDP-165).
        """
        self._has_rebuilt_buckets = False
        if self.logger is not None:
            self.logger.note(has_rebuilt_buckets=0)
        if new_process_group is None or new_process_group == dist.GroupMember.NON_GROUP_MEMBER:
            self.reducer.start_over()
            return
        self.process_group = new_process_group
        self.reducer.move_to(Team.of(new_process_group))

    def _set_static_graph(self) -> None:
        """Promise a static graph; before the first training forward (DDP-107 … DDP-109)."""
        options.check_static_graph(cast("DistributedDataParallel", self))
        if self.static_graph:
            return
        self.reducer.start_over(static_graph=True)
        self.static_graph = True
        assert self.logger is not None, "setting a static graph requires the logger"
        self.logger._set_static_graph()
