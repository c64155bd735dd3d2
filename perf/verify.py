"""The oracle's answer for a cell: the weights of one process after the same batches, and how far off a rank is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from conformance import oracle

from .cells import Cell
from .workloads import Workload

#: Relative to how far a parameter moves: what another order of summation may make of it. A lost contribution or a
#: missed step is far beyond.
TOLERANCE = 1e-3
_ROUNDING = 4e-7  # relative to the weights themselves: three times what one float32 keeps
_SMALLEST = 1e-3  # of the farthest movement: a parameter that moves less is held to this


@dataclass(frozen=True)
class Expected:
    """The weights of all parameters in a row, and by how much each element may be off."""

    weights: torch.Tensor  # (elements of the model,)
    allowed: torch.Tensor  # the same shape
    names: tuple[str, ...]
    ends: tuple[int, ...]  # where each parameter ends in the row

    def to(self, device: torch.device) -> Expected:
        return replace(self, weights=self.weights.to(device), allowed=self.allowed.to(device))

    @torch.no_grad()
    def gap(self, model: nn.Module) -> tuple[float, str]:
        """How far off the weights are, in units of what is allowed (up to 1 is right), and the worst parameter."""
        got = flat(model)
        apart = (got - self.weights).abs().div_(self.allowed)
        apart = torch.where(torch.isfinite(got), apart, torch.inf)
        worst, at = apart.max(dim=0)
        place = int(at.item())
        return worst.item(), next(name for name, end in zip(self.names, self.ends, strict=True) if place < end)


def flat(model: nn.Module) -> torch.Tensor:
    """All parameters in a row."""
    return torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])


def expected(
    workload: Workload, cell: Cell, schedule: Sequence[int], ranks: Sequence[int], device: torch.device
) -> Expected:
    """Train in this one process what ``ranks`` train together on ``schedule`` (their numbers of batches)."""
    model = workload.model().to(device)
    kind, settings = workload.optimizer(cell.optimizer)
    start = flat(model).clone()

    def batch(place: int, iteration: int) -> Any:
        return tuple(part.to(device) for part in workload.batch(ranks[place], iteration))

    steps = oracle.train_alone(model, kind(model.parameters(), **settings), schedule, batch, loss=lambda loss: loss)
    for _ in steps:
        pass
    return judged_from(model, start)


def judged_from(model: nn.Module, start: torch.Tensor) -> Expected:
    """The expectation that a trained model sets, where training began at ``start``."""
    weights = flat(model).clone()
    named = list(model.named_parameters())
    sizes = [parameter.numel() for _, parameter in named]
    moved = [part.abs().max() for part in (weights - start).split(sizes)]
    least = _SMALLEST * torch.stack(moved).max()
    scale = torch.cat([torch.maximum(one, least).expand(size) for one, size in zip(moved, sizes, strict=True)])
    high = torch.cat([part.abs().max().expand(part.numel()) for part in weights.split(sizes)])
    ends = torch.tensor(sizes).cumsum(0).tolist()
    return Expected(weights, TOLERANCE * scale + _ROUNDING * high, tuple(name for name, _ in named), tuple(ends))
