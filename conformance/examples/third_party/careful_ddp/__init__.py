"""Somebody else's classes: torch's, with one improvement, one weakness, and no ZeroRedundancyOptimizer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch.distributed.algorithms import join
from torch.nn.parallel import distributed

Joinable, JoinHook = join.Joinable, join.JoinHook


class Join(join.Join):
    """An improvement: what is no joinable is refused before anything is touched."""

    def __init__(
        self, joinables: list[Any], enable: bool = True, throw_on_early_termination: bool = False, **kwargs: Any
    ) -> None:
        for joinable in joinables:
            if not isinstance(joinable, Joinable):
                raise TypeError(f"Join takes joinables, and {type(joinable).__name__} is none")
        super().__init__(joinables, enable, throw_on_early_termination, **kwargs)


class DistributedDataParallel(distributed.DistributedDataParallel):
    """A weakness: an error inside ``no_sync`` leaves synchronisation switched off."""

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        before, self.require_backward_grad_sync = self.require_backward_grad_sync, False
        yield
        self.require_backward_grad_sync = before
