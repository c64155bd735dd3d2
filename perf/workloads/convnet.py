"""A residual convolutional network with BatchNorm: buffers in every block, parameters from a few to many elements."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from . import Size

SIZES: dict[str, Size] = {
    "cpu": {"stages": 3, "blocks": 2, "width": 16, "side": 16, "classes": 10, "rows": 4},
    "gpu": {"stages": 4, "blocks": 3, "width": 64, "side": 64, "classes": 1000, "rows": 64},
}


def _convolution(inside: int, outside: int, stride: int = 1, side: int = 3) -> nn.Conv2d:
    # no bias: BatchNorm takes it out again, and what is left of its gradient is rounding
    return nn.Conv2d(inside, outside, side, stride, padding=side // 2, bias=False)
RATES = {"sgd": 0.1, "adam": 0.01}


class Block(nn.Module):
    """Two convolutions and a way past them."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.first, self.norm1 = _convolution(inside, outside, stride), nn.BatchNorm2d(outside)
        self.second, self.norm2 = _convolution(outside, outside), nn.BatchNorm2d(outside)
        past = nn.Sequential(_convolution(inside, outside, stride, side=1), nn.BatchNorm2d(outside))
        self.past = nn.Identity() if inside == outside and stride == 1 else past

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = functional.silu(self.norm1(self.first(x)))
        return functional.silu(self.norm2(self.second(inner)) + self.past(x))


class Residual(nn.Module):
    def __init__(self, stages: int, blocks: int, width: int, classes: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(_convolution(3, width), nn.BatchNorm2d(width), nn.SiLU())
        body: list[nn.Module] = []
        inside = width
        for stage in range(stages):
            for block in range(blocks):
                body.append(Block(inside, width << stage, 2 if stage and not block else 1))
                inside = width << stage
        self.body, self.head = nn.Sequential(*body), nn.Linear(inside, classes)

    def forward(self, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        images, labels = batch
        return functional.cross_entropy(self.head(self.body(self.stem(images)).mean(dim=(2, 3))), labels)


def model(size: Size) -> nn.Module:
    return Residual(size["stages"], size["blocks"], size["width"], size["classes"])


def batch(size: Size, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    images = torch.randn(size["rows"], 3, size["side"], size["side"], generator=generator)
    return images, torch.randint(size["classes"], (size["rows"],), generator=generator)
