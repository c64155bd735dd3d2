"""What one process keeps of each rank: its models, its optimizers, and what it saw."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import nn

from .looking import Look


@dataclass
class Wrapped:
    """One model under DDP on one rank."""

    module: nn.Module
    ignored: frozenset[str] = frozenset()
    used: set[str] = field(default_factory=set)  # parameters that have got gradients since the last reduction

    def __post_init__(self) -> None:
        self.parameters = dict(self.module.named_parameters())
        self.trained = [n for n, p in self.parameters.items() if p.requires_grad and n not in self.ignored]
        for name in self.trained:
            self.parameters[name].register_post_accumulate_grad_hook(self._noting(name))

    def _noting(self, name: str) -> Callable[[torch.Tensor], None]:
        return lambda _: self.used.add(name)

    @torch.no_grad()
    def take_parameters(self, source: Wrapped) -> None:
        for name, parameter in self.parameters.items():
            if name not in self.ignored:
                parameter.copy_(source.parameters[name])

    @torch.no_grad()
    def take_buffers(self, source: Wrapped) -> None:
        theirs = dict(source.module.named_buffers())
        for name, buffer in self.module.named_buffers():
            buffer.data.copy_(theirs[name])  # an earlier graph may still need it (DDP-086)


@dataclass
class Replica:
    """One rank: its model, its second model, its optimizers, and what it saw."""

    rank: int
    model: Wrapped
    optimizer: torch.optim.Optimizer = field(init=False)
    later: list[torch.Tensor] = field(default_factory=list)
    other: Wrapped | None = None
    descent: torch.optim.Optimizer | None = None
    schedule: torch.optim.lr_scheduler.LRScheduler | None = None
    look: Look = field(default_factory=Look)
    x: torch.Tensor = field(default_factory=lambda: torch.empty(0))  # what it was fed last
    further: torch.optim.Optimizer | None = None  # beside the first one, on the same model
    averaged: torch.optim.swa_utils.AveragedModel | None = None
    calls: list[str] = field(default_factory=list)  # of the hooks of steps

    @property
    def models(self) -> list[Wrapped]:
        return [self.model, *([self.other] if self.other else [])]
