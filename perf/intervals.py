"""Intervals besides the paired ratio: of one cell's median, of a paired difference, of two runs against each other."""

from __future__ import annotations

import math
import statistics
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .ratio import LEAST_ROUNDS, LEVEL, Ratio, Row, by_round

Rounds = Mapping[int, float]  # a number for each round


@dataclass(frozen=True)
class Interval:
    """A figure with its 95 % interval, whose ends are NaN where nobody can tell."""

    point: float
    low: float
    high: float
    rounds: int

    @property
    def known(self) -> bool:
        """Whether there is an interval."""
        return self.low <= self.high

    def scaled(self, factor: float) -> Interval:
        return Interval(self.point * factor, self.low * factor, self.high * factor, self.rounds)


NOTHING = Interval(math.nan, math.nan, math.nan, 0)


def of_median(rounds: Rounds) -> Interval:
    """The median over rounds."""
    values = list(rounds.values())
    if not values:
        return NOTHING
    low, high = _bootstrapped((values,), _median)
    return Interval(statistics.median(values), low, high, len(values))


def of_row(row: Row) -> Interval:
    """A cell's median time in nanoseconds."""
    return of_median(by_round(row))


def of_difference(first: Rounds, second: Rounds) -> Interval:
    """The median of the differences, round by round, over the rounds that both have."""
    return of_median({number: first[number] - second[number] for number in sorted(first.keys() & second.keys())})


def apart(first: Sequence[float], second: Sequence[float]) -> Ratio:
    """The ratio of the medians of two series that were not measured together: nothing is paired, so less is known."""
    if not first or not second or not statistics.median(second):
        return Ratio(math.nan, math.nan, math.nan, 0)
    point = statistics.median(first) / statistics.median(second)
    low, high = _bootstrapped((list(first), list(second)), _quotient)
    return Ratio(point, low, high, min(len(first), len(second)))


def _median(values: Any, axis: int = -1) -> Any:
    import numpy as np

    return np.median(values, axis=axis)


def _quotient(above: Any, below: Any, axis: int = -1) -> Any:
    return _median(above, axis) / _median(below, axis)


def _bootstrapped(samples: tuple[list[float], ...], statistic: Callable[..., Any]) -> tuple[float, float]:
    import numpy as np
    from scipy.stats import bootstrap

    if min(map(len, samples)) < LEAST_ROUNDS:
        return math.nan, math.nan
    if all(len(set(values)) == 1 for values in samples):
        exact = float(statistic(*samples))
        return exact, exact
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # where resamples do not differ, there is no interval: NaN says so
        found = bootstrap(
            samples, statistic, vectorized=True, confidence_level=LEVEL, method="BCa", n_resamples=2000,
            random_state=np.random.default_rng(7),
        )  # fmt: skip
    return float(found.confidence_interval.low), float(found.confidence_interval.high)
