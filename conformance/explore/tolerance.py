"""How far a rank may be from one process: what rounding explains as a rule, and more where the program magnifies it.

How a program magnifies is measured by the oracle itself. It trains again, and every averaged gradient is moved by at
most one unit of rounding: as far as that moves a later number, rounding may move it.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any

import torch

from .oracle import OPEN, answers
from .program import Program
from .rounding import CLOSE, diverges, is_exact, largest, usual

Noted = dict[tuple[str, str], Any]  # by moment and name
SHAKES = 4  # so often the oracle trains again
TIMES = 8.0  # so many times what the largest of these moved a number: there is more than one rounding in a step
BOUND = 2.0**-2  # a part of a tensor's largest number: where rounding explains more, nothing is compared
ANYTHING = math.inf  # the number has left the range, and so it must on the ranks


class Tolerance:
    """Of every value of a program; what one process says, and by how much a rank may be off."""

    def __init__(self, program: Program) -> None:
        self.program, self.exactly = program, is_exact(program)

    @cached_property
    def expected(self) -> dict[int, Noted]:
        """What one process says, by rank."""
        return answers(self.program)

    @cached_property
    def _shaken(self) -> list[dict[int, Noted]]:
        return [answers(self.program, shaken=seed) for seed in range(SHAKES)]

    def usual(self, value: Any) -> float:
        """What rounding explains as a rule."""
        if not isinstance(value, torch.Tensor) or value.dtype not in CLOSE or not value.numel() or self.exactly:
            return 0.0
        return usual(value, self.program) if value.isfinite().all() else ANYTHING

    def grown(self, rank: int, key: tuple[str, str], value: torch.Tensor) -> float | None:
        """What rounding explains here, as far as the program has magnified it; None if that is nearly everything."""
        moved = [_gap(each.get(rank, {}).get(key), value) for each in self._shaken]
        most = TIMES * max(moved)
        return None if most > BOUND * largest(value) else max(most, self.usual(value))

    def compared(self, rank: int) -> list[tuple[tuple[str, str], Any, float]]:
        """All that is compared of a rank, with what rounding explains."""
        found = []
        for key, value in self.expected.get(rank, {}).items():
            if isinstance(value, str) and value == OPEN:
                continue
            most: float | None = self.usual(value)
            if most and diverges(key[1], value):
                break
            if most and math.isfinite(most):
                most = self.grown(rank, key, value)
            if most is not None:
                found.append((key, value, most))
        return found


def _gap(shaken: Any, value: torch.Tensor) -> float:
    """How far a number was moved; nothing is known where it was not noted."""
    if not isinstance(shaken, torch.Tensor) or shaken.shape != value.shape:
        return 0.0
    gap = (shaken - value).abs().max().item()
    return gap if math.isfinite(gap) else math.inf
