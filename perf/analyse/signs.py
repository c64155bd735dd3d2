"""The sign test over rounds: what it says of a number, and the interval of all numbers that it does not contradict.

A sample holds a pair for each round. A number fits it where the first of a pair is as often above so many times the
second as it is below. So one test serves the median of times (over ones), of differences, and of ratios, and its
interval lies between two order statistics: it assumes no shape of the noise, and holds for six rounds as for sixty.

Rounds that take after each other tell less than so many independent ones. Their lag-1 correlation is estimated, and the
counts are then taken to scatter as those of an autoregressive series do (a beta-binomial of that variance). Of fewer
than 12 rounds it cannot be told; they are taken to be independent, and where they correlate by 0.3 up to 10 % of the
intervals miss (perf/tests/test_ratio.py).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

LEVEL = 0.95
LEAST_CORRELATED = 12  # rounds: with fewer their correlation cannot be told, and nothing is widened
_MOST = 0.95  # a correlation beyond this is that of a drift, of which no number of rounds tells the median
_FAR = 2.5  # times the usual deviation: farther rounds count as so far, or one outlier would hide a correlation
_MAD = 1.4826  # makes the median absolute deviation of normal noise its standard deviation


@dataclass(frozen=True)
class Sample:
    """A pair of numbers for each round, in the order of the rounds."""

    above: tuple[float, ...]
    below: tuple[float, ...]
    correlation: float = math.nan  # of each round with the one before; NaN: too few rounds to tell

    @property
    def rounds(self) -> int:
        return len(self.above)


def sample(above: Sequence[float], below: Sequence[float] | None = None) -> Sample:
    """Of pairs, or of numbers that stand for themselves."""
    under = (1.0,) * len(above) if below is None else tuple(below)
    return Sample(tuple(above), under, _correlation(above, under))


@dataclass(frozen=True)
class Interval:
    """A figure with its 95 % interval, whose ends are NaN where nobody can tell."""

    point: float
    low: float
    high: float
    rounds: int
    sample: Sample = field(default=Sample((), ()), repr=False, compare=False)  # empty where it is not made of rounds

    @property
    def known(self) -> bool:
        """Whether there is an interval."""
        return self.low <= self.high

    def scaled(self, factor: float) -> Interval:
        """In another unit."""
        data = replace(self.sample, above=tuple(factor * each for each in self.sample.above))
        return Interval(self.point * factor, self.low * factor, self.high * factor, self.rounds, data)


def interval(data: Sample, level: float = LEVEL) -> tuple[float, float]:
    """From the least to the largest number that the test allows; NaN where so few rounds allow any number.

    Of five rounds even the widest interval, from the least to the largest, holds the median in only 94 % of cases.

    Where ``below`` is not clear of 0 there is no largest number; where ``above`` is not either, it may be any.
    """
    import numpy as np

    outside = _outside(data, (1 - level) / 2)
    if not outside:
        return math.nan, math.nan
    above, below = np.array(data.above), np.array(data.below)
    if np.sort(below)[outside - 1] > 0:
        return _ends(above, below, outside)
    if np.sort(above)[outside - 1] > 0:
        return _ends(above, below, outside, least=0.0)[0], math.inf
    return -math.inf, math.inf


def less_p(data: Sample, limit: float) -> float:
    """How probable it is to see so many rounds below ``limit`` if it were not above the truth (one side)."""
    return _tail(data, sum(first >= limit * second for first, second in zip(data.above, data.below, strict=True)))


def more_p(data: Sample, limit: float) -> float:
    """How probable it is to see so many rounds above ``limit`` if it were not below the truth (one side)."""
    return _tail(data, sum(first <= limit * second for first, second in zip(data.above, data.below, strict=True)))


def _tail(data: Sample, contrary: int) -> float:
    return float(_sums(data.rounds, _likeness(data))[contrary]) if data.rounds else 1.0


def _outside(data: Sample, tail: float) -> int:
    """Which order statistic, from either side, is the end of the interval; 0: there is none."""
    return sum(each <= tail for each in _sums(data.rounds, _likeness(data))) if data.rounds else 0


@lru_cache(maxsize=4096)
def _sums(rounds: int, likeness: float) -> tuple[float, ...]:
    """The probability that at most so many of the rounds lie above their median."""
    import numpy as np
    from scipy.stats import betabinom, binom

    counts = np.arange(rounds + 1)
    if not likeness:
        return tuple(binom.cdf(counts, rounds, 0.5).tolist())
    shape = (1 / likeness - 1) / 2
    return tuple(np.cumsum(betabinom.pmf(counts, rounds, shape, shape)).tolist())


def _likeness(data: Sample) -> float:
    """The correlation that any two rounds' signs would have if all pairs had the same: it gives the counts' variance.

    Rounds of a normal series correlated by r with the one before have signs correlated by asin(r) 2 / pi, and so on.
    """
    if not data.correlation > 0:
        return 0.0
    lags = range(1, data.rounds)
    pairs = sum((data.rounds - lag) * math.asin(data.correlation**lag) * 2 / math.pi for lag in lags)
    return round(2 * pairs / data.rounds / (data.rounds - 1), 3)


def _correlation(above: Sequence[float], below: Sequence[float]) -> float:
    """Lag-1, robust, and without the bias that few rounds give it."""
    rounds = len(above)
    if rounds < LEAST_CORRELATED:
        return math.nan
    import numpy as np

    first, second = np.array(above, dtype=float), np.array(below, dtype=float)
    middle = np.median(first) / np.median(second) if np.median(second) else 0.0
    apart = first / second - middle if (second > 0).all() else first - middle * second
    apart -= np.median(apart)
    far = _FAR * _MAD * np.median(np.abs(apart)) or np.abs(apart).max()
    apart = np.clip(apart, -far, far) - np.clip(apart, -far, far).mean()
    squares = float((apart**2).sum())
    if not squares:
        return math.nan
    seen = float((apart[1:] * apart[:-1]).sum()) / squares
    return min(max((seen + 1 / rounds) / (1 - 3 / rounds), -_MOST), _MOST)


def _ends(above: Any, below: Any, outside: int, least: float = -math.inf) -> tuple[float, float]:
    """The least and the largest number above ``least`` that the test allows; each is the ratio of some round."""
    import numpy as np

    ratios = above[below != 0] / below[below != 0]
    ratios = np.sort(ratios[ratios > least])
    over = (above >= ratios[:, None] * below).sum(axis=1)
    under = (above <= ratios[:, None] * below).sum(axis=1)
    fits = ratios[(over >= outside) & (under >= outside)]
    return (float(fits[0]), float(fits[-1])) if len(fits) else (math.inf, math.inf)


def significant(p_values: Sequence[float]) -> list[bool]:
    """Which of several verdicts stand, so that of those that do at most 5 % are expected to be false.

    This is Benjamini and Hochberg's correction; where nothing differs at all, any verdict stands in 5 % of cases.
    """
    from scipy.stats import false_discovery_control

    if not p_values:
        return []
    adjusted = false_discovery_control([min(each, 1.0) for each in p_values])  # twice the larger side may be above 1
    return [bool(each <= 1 - LEVEL) for each in adjusted]


def correlation(data: Sample) -> str:
    """The lag-1 correlation as a table tells it; empty where it is not known."""
    return f"{round(data.correlation, 1) + 0.0:.1f}".replace("-", "−") if data.correlation == data.correlation else ""
