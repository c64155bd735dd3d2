"""Training that waits where an accelerator would compute: real parameters, exact gradients, and an idle processor.

A layer's forward and backward sleep as long as its profile says. Its gradient is that of ``½ ‖weight − inputs‖²``, from
this rank's inputs and this iteration's weights, so a rank that is lost, or weights that are stale, are seen as anywhere
else. The value that comes out means nothing. Without a pace nothing sleeps: that is how the oracle trains.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable

from . import Size
from .profiles import PROFILES, ROW, Layer, profile

SIZES: dict[str, Size] = {name: {"profile": name} for name in ("cpu", "gpu", *PROFILES)}
RATES = {"sgd": 0.1, "adam": 0.01}


def _wait(seconds: float) -> None:
    if seconds:
        time.sleep(seconds)


class _Waiting(torch.autograd.Function):
    """One layer. ``carry`` only ties the layers into a row."""

    @staticmethod
    def forward(ctx: Any, carry: torch.Tensor, weight: torch.Tensor, inputs: torch.Tensor, layer: Layer,
                pace: float) -> torch.Tensor:  # fmt: skip
        _wait(pace * layer.forward_s)
        ctx.wait_s = pace * layer.backward_s
        ctx.save_for_backward(weight, inputs)
        return carry.view_as(carry)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, ahead: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        _wait(ctx.wait_s)
        weight, inputs = ctx.saved_tensors
        return ahead, (weight - inputs).mul_(ahead), None, None, None


class Paced(nn.Module):
    """A row of layers with the parameters and the times of a profile; ``pace`` 0: without the times."""

    def __init__(self, layers: tuple[Layer, ...], pace: float) -> None:
        super().__init__()
        self.layers, self.pace = layers, pace
        self.weights = nn.ParameterList([nn.Parameter(torch.randn(layer.numel // ROW, ROW)) for layer in layers])

    def forward(self, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        inputs, carry = batch  # inputs: (layers, ROW)
        for layer, weight, row in zip(self.layers, self.weights, inputs, strict=True):
            carry = _Waiting.apply(carry, weight, row, layer, self.pace)  # type: ignore[no-untyped-call]
        return carry


def model(size: Size) -> nn.Module:
    return Paced(profile(size["profile"]).layers, size.get("pace", 0.0))


def batch(size: Size, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(len(profile(size["profile"]).layers), ROW, generator=generator), torch.zeros(())
