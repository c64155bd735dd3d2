"""The oracle's answer for a cell: what one process has after the same batches, and how far off a rank is."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import torch
from torch import nn

from conformance.api import oracle

from ..plan.cells import Cell
from ..workloads import Workload

#: Relative to how far a parameter or a buffer moves: what another order of summation may make of it. Workloads are
#: smooth, so rounding stays rounding; ``test_rounding`` measures how much it is, and that mistakes are far beyond.
TOLERANCE = 3e-4
_ROUNDING = 1e-6  # relative to the values themselves: eight times what one float32 keeps
_SMALLEST = 1e-3  # of the farthest movement: a tensor that moves less is held to this
_COUNTS = 0.1  # a buffer of whole numbers is exact

Named = Sequence[tuple[str, torch.Tensor]]


@dataclass(frozen=True)
class ExpectedValues:
    """The elements of some tensors in a row, and by how much each may be off."""

    values: torch.Tensor  # (elements of all tensors,)
    allowed: torch.Tensor  # the same shape
    names: tuple[str, ...]
    ends: tuple[int, ...]  # where each tensor ends in the row

    def to(self, device: torch.device) -> ExpectedValues:
        return replace(self, values=self.values.to(device), allowed=self.allowed.to(device))

    @torch.no_grad()
    def gap(self, tensors: Iterable[torch.Tensor]) -> tuple[float, str]:
        """How far off the tensors are, in units of what is allowed (up to 1 is right), and the worst one's name."""
        if not self.names:
            return 0.0, ""
        got = flat(tensors)
        off = (got - self.values).abs()
        apart = torch.where(off == 0, 0.0, off / self.allowed)  # where nothing was trained, nothing is allowed
        apart = torch.where(torch.isfinite(apart), apart, torch.inf)
        worst, at = apart.max(dim=0)
        place = int(at.item())
        return worst.item(), next(name for name, end in zip(self.names, self.ends, strict=True) if place < end)


@dataclass(frozen=True)
class Expected:
    """The parameters, which all ranks have in common, and each rank's own buffers."""

    parameters: ExpectedValues
    buffers: tuple[ExpectedValues, ...]  # by place in the schedule

    def to(self, device: torch.device) -> Expected:
        return Expected(self.parameters.to(device), tuple(each.to(device) for each in self.buffers))

    def gap(self, model: nn.Module, place: int) -> tuple[float, str]:
        """How far off the model of the rank at this place is, as ``ExpectedValues.gap`` has it."""
        return max(self.parameters.gap(model.parameters()), self.buffers[place].gap(model.buffers()))


@contextlib.contextmanager
def in_full_precision() -> Iterator[None]:
    """No TF32: a GPU's convolutions round their inputs to 10 bits unless told otherwise, far beyond the tolerance."""
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = before


def flat(tensors: Iterable[torch.Tensor]) -> torch.Tensor:
    """All elements in a row."""
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


def expected(
    workload: Workload, cell: Cell, schedule: Sequence[int], ranks: Sequence[int], device: torch.device
) -> Expected:
    """Train in this one process what ``ranks`` train together on ``schedule`` (their numbers of batches)."""
    model = workload.model().to(device)
    kind, settings = workload.optimizer(cell.optimizer)
    start = {name: tensor.detach().clone() for name, tensor in [*model.named_parameters(), *model.named_buffers()]}
    replicas = oracle.Replicas(model, len(schedule), max if cell.follows_last else min)

    def batch(place: int, iteration: int) -> Any:
        return tuple(part.to(device) for part in workload.batch(ranks[place], iteration))

    optimizer = kind(model.parameters(), **settings)
    for _ in oracle.steps_alone(model, optimizer, schedule, batch, loss=lambda loss: loss, replicas=replicas):
        pass
    if cell.joins:  # whoever is last leaves the model to all
        replicas.take_over(oracle.active_ranks(schedule, max(schedule) - 1))
    buffers = tuple(expected_values(list(held.items()), start) for held in replicas.held)
    return Expected(expected_values(list(model.named_parameters()), start), buffers)


@torch.no_grad()
def expected_values(named: Named, start: dict[str, torch.Tensor]) -> ExpectedValues:
    """What trained tensors are expected to hold, where training began at ``start``."""
    if not named:
        return ExpectedValues(torch.empty(0), torch.empty(0), (), ())
    moved = {name: (tensor - start[name]).abs().max() for name, tensor in named if tensor.is_floating_point()}
    least = _SMALLEST * max(moved.values(), default=0.0)
    allowed = [
        TOLERANCE * max(moved[name], least) + _ROUNDING * tensor.abs().max() if name in moved else torch.tensor(_COUNTS)
        for name, tensor in named
    ]
    values = flat(tensor for _, tensor in named)
    sizes = [tensor.numel() for _, tensor in named]
    spread = [one.to(values.device).expand(size) for one, size in zip(allowed, sizes, strict=True)]
    return ExpectedValues(values, torch.cat(spread), tuple(name for name, _ in named), tuple(accumulate(sizes)))
