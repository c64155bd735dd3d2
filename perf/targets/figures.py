"""From the rows of a group to figures with intervals: ratios, ratios of added times, shares of a phase, counts.

Everything is paired round by round: the turns of a round stand side by side in time.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from ..intervals import Interval, of_difference, of_median
from ..ratio import LEAST_ROUNDS, LEVEL, Ratio, by_round, paired
from ..rows import Row

Rounds = Mapping[int, float]
_RESAMPLES = 4000


def exact(value: float) -> Interval:
    """A figure that was counted, not measured."""
    return Interval(value, value, value, 1)


def ratio(first: Row, second: Row) -> Interval:
    """The ratio of the medians of the times."""
    return _interval(paired(by_round(first), by_round(second)))


def phase_ratio(first: Row, second: Row, phase: str) -> Interval:
    """The same for one phase: forward, backward or step."""
    return _interval(paired(phase_of(first, f"{phase}_wall"), phase_of(second, f"{phase}_wall")))


def phase_of(row: Row, name: str) -> dict[int, float]:
    """A phase's time of the slowest rank, round by round."""
    return by_round(row, row["phases"][name])


def of_rank(row: Row, field: str, rank: int) -> dict[int, float]:
    """One rank's samples instead of the slowest's."""
    return by_round(row, [[sample[rank]] for sample in row[field]])


def quotient(first: Rounds, second: Rounds) -> Interval:
    return _interval(paired(first, second))


def difference(first: Rounds, second: Rounds, unit: float = 1.0) -> Interval:
    """The median of the differences, round by round, in ``unit`` nanoseconds."""
    return of_difference(first, second).scaled(1 / unit)


def added(with_it: Row, without: Row) -> dict[int, float]:
    """By how much a cell takes longer than another, round by round."""
    above, below = by_round(with_it), by_round(without)
    return {number: above[number] - below[number] for number in sorted(above.keys() & below.keys())}


def ratio_of_added(mine: Rounds, theirs: Rounds) -> Interval:
    """The median of what ours adds over that of what theirs adds, with a percentile interval over resampled rounds.

    Where theirs adds nothing in a resample, ours is endlessly more; where ours adds nothing either, it may be anything.
    """
    import numpy as np

    both = sorted(mine.keys() & theirs.keys())
    if not both:
        return Interval(math.nan, math.nan, math.nan, 0)
    above, below = (np.array([one[number] for number in both]) for one in (mine, theirs))
    point = _over(np.median(above), np.median(below))
    if len(both) < LEAST_ROUNDS:
        return Interval(float(point), math.nan, math.nan, len(both))
    picks = np.random.default_rng(7).integers(len(both), size=(_RESAMPLES, len(both)))
    tops, bottoms = np.median(above[picks], axis=1), np.median(below[picks], axis=1)
    found, anything = _over(tops, bottoms), (tops <= 0) & (bottoms <= 0)
    low = np.quantile(np.where(anything, -np.inf, found), (1 - LEVEL) / 2, method="inverted_cdf")
    high = np.quantile(found, (1 + LEVEL) / 2, method="inverted_cdf")
    return Interval(float(point), float(low), float(high), len(both))


def _over(above: Any, below: Any) -> Any:
    import numpy as np

    return np.where(below > 0, above / np.where(below > 0, below, 1.0), np.inf)


def least(rows: Sequence[Row], phase: str = "") -> Row:
    """The row with the least median time."""
    times = {id(row): by_round(row) if not phase else phase_of(row, phase) for row in rows}
    return min(rows, key=lambda row: statistics.median(times[id(row)].values()))


def of_samples(samples_ns: Sequence[float], unit: float) -> Interval:
    """The median of samples that stand for themselves, one a round."""
    return of_median(dict(enumerate(samples_ns))).scaled(1 / unit)


def _interval(found: Ratio) -> Interval:
    return Interval(found.point, found.low, found.high, found.rounds)
