"""A multilayer perceptron that classifies: few and large parameters."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from . import Size

SIZES: dict[str, Size] = {
    "cpu": {"layers": 4, "width": 256, "classes": 10, "rows": 64},
    "gpu": {"layers": 8, "width": 4096, "classes": 1000, "rows": 256},
}
RATES = {"sgd": 0.1, "adam": 0.01}


class Classifier(nn.Module):
    def __init__(self, layers: int, width: int, classes: int) -> None:
        super().__init__()
        hidden = [part for _ in range(layers) for part in (nn.Linear(width, width), nn.SiLU())]
        self.layers = nn.Sequential(*hidden, nn.Linear(width, classes))

    def forward(self, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        inputs, labels = batch
        return functional.cross_entropy(self.layers(inputs), labels)


def model(size: Size) -> nn.Module:
    return Classifier(size["layers"], size["width"], size["classes"])


def batch(size: Size, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    inputs = torch.randn(size["rows"], size["width"], generator=generator)
    return inputs, torch.randint(size["classes"], (size["rows"],), generator=generator)
