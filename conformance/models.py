"""Small models whose arithmetic floats represent exactly, and the data that feeds them."""

from __future__ import annotations

import torch
from torch import nn


def scalar(weight: float = 1.0) -> nn.Linear:
    """Linear(1, 1) without bias: fed ``r + 1`` on rank r, its local gradient under a summed loss is ``r + 1``."""
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, weight)
    return model


def chain(layers: int = 4, width: int = 4) -> nn.Sequential:
    """A stack of square linear layers with small integer weights: several buckets under a tiny cap."""
    model = nn.Sequential(*[nn.Linear(width, width) for _ in range(layers)])
    for index, parameter in enumerate(model.parameters()):
        values = torch.arange(parameter.numel()).remainder(3).sub(1).add(index % 2)
        parameter.data.copy_(values.view_as(parameter).to(parameter.dtype))
    return model


def integers(*shape: int, seed: int = 0, low: int = -2, high: int = 3) -> torch.Tensor:
    """Reproducible small integers as floats."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(low, high, shape, generator=generator).float()
