"""Compares two cells that were measured interleaved: the ratio of their medians, with an interval, turn by turn.

The turns of one round stand side by side in time and are resampled as pairs, so what disturbs the machine for a while
disturbs both and cancels.
"""

from __future__ import annotations

import math
import statistics
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

LEAST_ROUNDS = 6  # below these an interval promises more than it knows
LEVEL = 0.95
SAME = 0.05  # an interval within this distance of 1 shows that there is no difference worth the name

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Ratio:
    """The first cell's time over the second's. ``low`` and ``high`` are NaN where nobody can tell."""

    point: float
    low: float
    high: float
    rounds: int

    @property
    def said(self) -> str:
        """What the interval allows to say."""
        if not self.low <= self.high:  # NaN
            return "not enough runs to tell"
        if self.high < 1:
            return "faster"
        if self.low > 1:
            return "slower"
        return "same" if self.low >= 1 - SAME and self.high <= 1 + SAME else "not enough runs to tell"

    def __str__(self) -> str:
        if not self.low <= self.high:
            return f"{self.point:.2f}"
        return f"{self.point:.2f} [{self.low:.2f}, {self.high:.2f}]"


def time_of(row: Row) -> str:
    """The field whose times count: on a device the events', which the host runs ahead of."""
    return "device_ns" if row["device_ns"] else "wall_ns"


def slowest(samples: Sequence[Sequence[int]]) -> list[int]:
    """A sample's time is that of the slowest rank."""
    return [max(sample) for sample in samples]


def by_round(row: Row, samples: Sequence[Sequence[int]] | None = None) -> dict[int, float]:
    """The median of each round's samples (by default of the times that count)."""
    times = slowest(row[time_of(row)] if samples is None else samples)
    rounds: dict[int, list[int]] = {}
    for number, time in zip(row["block"], times, strict=True):
        rounds.setdefault(number, []).append(time)
    return {number: statistics.median(times) for number, times in rounds.items()}


def median_ns(row: Row) -> float:
    """The median over rounds of a round's median; NaN without samples."""
    rounds = by_round(row)
    return statistics.median(rounds.values()) if rounds else math.nan


def ratio(first: Row, second: Row) -> Ratio:
    """The first cell against the second; both must be of one group of one run."""
    return paired(by_round(first), by_round(second))


def paired(first: Mapping[int, float], second: Mapping[int, float]) -> Ratio:
    """The ratio of the medians of two series of rounds, over the rounds that both have."""
    both = sorted(first.keys() & second.keys())
    above, below = [first[number] for number in both], [second[number] for number in both]
    if not both or not statistics.median(below):
        return Ratio(math.nan, math.nan, math.nan, len(both))
    point = statistics.median(above) / statistics.median(below)
    low, high = _interval(above, below) if len(both) >= LEAST_ROUNDS else (math.nan, math.nan)
    return Ratio(point, low, high, len(both))


def _interval(above: list[float], below: list[float]) -> tuple[float, float]:
    import numpy as np
    from scipy.stats import bootstrap

    def ratio_of_medians(above: Any, below: Any, axis: int = -1) -> Any:
        return np.median(above, axis=axis) / np.median(below, axis=axis)

    if above == below:
        return 1.0, 1.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # where resamples do not differ, there is no interval: NaN says so
        found = bootstrap(
            (above, below), ratio_of_medians, paired=True, vectorized=True, confidence_level=LEVEL, method="BCa",
            n_resamples=2000, random_state=np.random.default_rng(7),
        )  # fmt: skip
    return float(found.confidence_interval.low), float(found.confidence_interval.high)
