"""400 parameters (or another number) of 64 elements: nearly all of a step is what the library does per parameter."""

from __future__ import annotations

import torch
from torch import nn

from . import COUNTS, Size

_COUNTS = {"cpu": 400, "gpu": 400, **{name: int(name) for name in COUNTS}}
SIZES: dict[str, Size] = {name: {"parameters": count, "numel": 64} for name, count in _COUNTS.items()}
RATES = {"sgd": 0.1, "adam": 0.01}


class Tiny(nn.Module):
    """All parameters in one product: one node of the graph hands out all gradients at once."""

    def __init__(self, parameters: int, numel: int) -> None:
        super().__init__()
        self.each = nn.ParameterList([nn.Parameter(torch.randn(numel)) for _ in range(parameters)])

    def forward(self, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        inputs, targets = batch
        return (torch.stack(list(self.each)) * inputs - targets).square().sum()


def model(size: Size) -> nn.Module:
    return Tiny(size["parameters"], size["numel"])


def batch(size: Size, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    inputs = torch.rand(size["numel"], generator=generator) + 0.5
    return inputs, torch.randn(size["numel"], generator=generator)
