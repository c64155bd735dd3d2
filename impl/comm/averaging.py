"""In which dtype a gradient is averaged, and when the mean divides: one rule each for everything that averages."""

from __future__ import annotations

from functools import cache

import torch


def gradient_dtype(parameter: torch.Tensor) -> torch.dtype:
    """The dtype of a parameter's gradient: its ``grad_dtype`` if the user has set one, as a rule its own.

    Whoever keeps gradients of a bfloat16 parameter in float32 wants no bit of them lost between the ranks.
    """
    chosen: torch.dtype | None = getattr(parameter, "grad_dtype", None)  # torch 2.10 and later
    return parameter.dtype if chosen is None else chosen


@cache
def divides_first(dtype: torch.dtype) -> bool:
    """Whether a mean in this dtype divides each rank's contribution, and not the sum.

    In two bytes it does: sums of float16 overflow early (at 65504), and of float16 and bfloat16 alike the documents of
    the compression hooks say that they divide before they reduce (COMM-020). A hook must not change what DDP computes
    without one (COMM-017, COMM-019), nor a wrapper what its hook does (COMM-021), so everybody follows this rule.
    Elsewhere the sum is divided, which rounds once and not once for each rank. (torch divides first in every dtype.)
    """
    return torch.finfo(dtype).bits <= 16
