"""Keeping buffers alike: a broadcast from the source before forward, or the user's hook before or after it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

import torch

#: hook(state, {name: buffer}) -> None, or a list of futures
BufferHook = Callable[[Any, dict[str, torch.Tensor]], "list[torch.futures.Future[Any]] | None"]


class _BufferCommHookLocation(Enum):
    """Where a buffer hook runs."""

    PRE_FORWARD = auto()
    POST_FORWARD = auto()

    @staticmethod
    def of(location: Any) -> _BufferCommHookLocation:
        """The member that ``location`` names, ours or torch's; TypeError for anything else."""
        name = str(getattr(location, "name", None))
        known = _BufferCommHookLocation.__members__
        if type(location).__name__ != _BufferCommHookLocation.__name__ or name not in known:
            members = ", ".join(f"_BufferCommHookLocation.{each}" for each in known)
            raise TypeError(f"Buffer communication hook: the location must be one of {members}, not {location!r}.")
        return known[name]


@dataclass(frozen=True)
class _BufferCommHook:
    """A registered buffer hook (DDP-093)."""

    buffer_comm_hook: BufferHook
    buffer_comm_hook_state: Any
    buffer_comm_hook_location: _BufferCommHookLocation

    def call(self, buffers: dict[str, torch.Tensor]) -> list[torch.futures.Future[Any]]:
        """Run the hook; the futures that must be done before backward returns (DDP-095)."""
        futures = self.buffer_comm_hook(self.buffer_comm_hook_state, buffers)
        if futures is None:
            return []
        return list(futures) if isinstance(futures, (list, tuple)) else [futures]
