"""From the rows of a group to figures with intervals: ratios, ratios of added times, shares of a phase, counts.

Everything is paired round by round: the turns of a round stand side by side in time.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

from ...measure.rows import Row
from ..intervals import NOTHING, Interval, of_difference, of_median
from ..ratio import Ratio, by_round, paired
from ..signs import interval, sample

Rounds = Mapping[int, float]


def exact(value: float) -> Interval:
    """A figure that was counted, not measured."""
    return Interval(value, value, value, 1)


def ratio(first: Row, second: Row) -> Interval:
    """The median of the rounds' ratios of the times."""
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
    """What ours adds over what theirs adds: the medians' quotient, and the numbers that the sign test allows.

    Where what theirs adds is not clear of nothing, ours may be endlessly more; where ours is not either, anything.
    """
    both = sorted(mine.keys() & theirs.keys())
    if not both:
        return NOTHING
    above, below = ([one[number] for number in both] for one in (mine, theirs))
    data = sample(above, below)
    low, high = interval(data)
    under = statistics.median(below)
    point = statistics.median(above) / under if under > 0 else math.inf
    return Interval(point, min(low, point), max(high, point), len(both), data)  # NaN stays: it comes first


def least(rows: Sequence[Row], phase: str = "") -> Row:
    """The row with the least median time."""
    times = {id(row): by_round(row) if not phase else phase_of(row, phase) for row in rows}
    return min(rows, key=lambda row: statistics.median(times[id(row)].values()))


def of_samples(samples_ns: Sequence[float], unit: float) -> Interval:
    """The median of samples that stand for themselves, one a round."""
    return of_median(dict(enumerate(samples_ns))).scaled(1 / unit)


def _interval(found: Ratio) -> Interval:
    return Interval(found.point, found.low, found.high, found.rounds, found.sample)
