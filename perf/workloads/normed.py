"""A few small layers with BatchNorm between them: like ``light``, but with buffers to keep equal on all ranks."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from . import Size

SIZES: dict[str, Size] = {"cpu": {"layers": 3, "width": 32, "rows": 16}, "gpu": {"layers": 3, "width": 32, "rows": 16}}
RATES = {"sgd": 0.02, "adam": 0.002}


class Normed(nn.Module):
    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        # without a bias, which BatchNorm would only take out again
        parts = [(nn.Linear(width, width, bias=False), nn.BatchNorm1d(width), nn.Tanh()) for _ in range(layers)]
        self.layers = nn.Sequential(*(part for three in parts for part in three), nn.Linear(width, 1))

    def forward(self, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        inputs, targets = batch
        return functional.mse_loss(self.layers(inputs), targets)


def model(size: Size) -> nn.Module:
    return Normed(size["layers"], size["width"])


def batch(size: Size, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    inputs = torch.randn(size["rows"], size["width"], generator=generator)
    return inputs, inputs[:, :1] + torch.randn(size["rows"], 1, generator=generator)
