"""Where a program rounds: whether every bit is known, and by how much a number may be off where that is not so."""

from __future__ import annotations

from typing import Any

import torch

from .program import Program

#: Of the largest number of a tensor, where sums of several ranks round: twenty steps of the significand's last places.
CLOSE = {torch.float64: 2.0**-18, torch.float32: 2.0**-14, torch.float16: 2.0**-6, torch.bfloat16: 2.0**-4,
         torch.complex64: 2.0**-14}  # fmt: skip
SMALL = 2.0**-2  # numbers below are as large as this: what rounds away may leave nothing but its rounding
DIVERGED = 2.0**20


def is_exact(program: Program) -> bool:
    """Whether no sum rounds, so every bit is known: gradients are whole multiples of twelve, and weights are short.

    Elsewhere, as with weights that have been divided or decayed again and again, a kernel may even depend on how its
    memory is aligned.
    """
    rounding = "lowered", "autocast", "further layer"
    if program["types"] == "bfloat16" or program["accumulation"] == "uncleared" or any(map(program.has, rounding)):
        return False
    if program["second model"] == "behind":
        return False
    if program["types"] == "half" and program["backward"] == "in two parts" and program.has("accumulation"):
        return False  # the second part averages the first one's averages once more, each rank's by itself
    whole = program["wiring"] == "side by side" and not program.has("norm") and program["clipped"] != "by norm"
    short = not program.has("rate") or program["types"] in ("float", "double")
    return whole and short and program["optimizer"] not in ("adam", "fused", "decay")


def places(program: Program) -> torch.dtype:
    """The dtype that numbers have gone through and that has the fewest places."""
    if program.has("autocast"):
        return torch.bfloat16
    if program["hook"] in ("fp16", "wrapped") or program["types"] == "mixed":
        return torch.float16
    if program.has("lowered"):
        return torch.bfloat16
    before = {"half": torch.float16, "bfloat16": torch.bfloat16}.get(program["types"], torch.float32)
    return before if program.has("cast") else torch.float64


def unit(value: torch.Tensor, program: Program) -> float:
    """One unit of rounding of a tensor's largest number."""
    most = value.abs().max().item() if value.numel() else 0.0
    return most * max(torch.finfo(value.dtype).eps, torch.finfo(places(program)).eps)


def largest(value: torch.Tensor) -> float:
    """What the tolerance of a tensor is a part of."""
    return max(value.abs().max().item(), SMALL)


def usual(value: torch.Tensor, program: Program) -> float:
    """What rounding explains as a rule, for a tensor of a program that is not exact."""
    few = torch.float16 if program["further layer"] == "attention" else places(program)  # an exponent magnifies
    return largest(value) * max(CLOSE[value.dtype], CLOSE[few])


def diverges(name: str, value: Any) -> bool:
    """Whether training has run away in one process: from then on every step magnifies what rounding did.

    A buffer tells nothing of that: one begins at 2^40.
    """
    numbers = isinstance(value, torch.Tensor) and value.dtype in CLOSE and value.numel() > 0
    return numbers and not name.startswith("buffer") and value.abs().max().item() > DIVERGED
