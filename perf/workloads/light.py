"""A few small layers: an iteration is so short that what a library adds to it is seen well above the noise."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from . import Size

SIZES: dict[str, Size] = {"cpu": {"layers": 3, "width": 32, "rows": 16}, "gpu": {"layers": 3, "width": 32, "rows": 16}}
RATES = {"sgd": 0.02, "adam": 0.002}


class Light(nn.Module):
    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        hidden = [part for _ in range(layers) for part in (nn.Linear(width, width), nn.Tanh())]
        self.layers = nn.Sequential(*hidden, nn.Linear(width, 1))

    def forward(self, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        inputs, targets = batch
        return functional.mse_loss(self.layers(inputs), targets)


def model(size: Size) -> nn.Module:
    return Light(size["layers"], size["width"])


def batch(size: Size, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    inputs = torch.randn(size["rows"], size["width"], generator=generator)
    return inputs, inputs[:, :1] + torch.randn(size["rows"], 1, generator=generator)
