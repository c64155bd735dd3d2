"""Intervals besides the paired ratio: of a cell's median, of a paired difference, of two series that are not paired."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

from .ratio import Ratio, Row, by_round
from .signs import Interval, interval, sample

Rounds = Mapping[int, float]  # a number for each round


NOTHING = Interval(math.nan, math.nan, math.nan, 0)


def of_median(rounds: Rounds) -> Interval:
    """The median over rounds."""
    if not rounds:
        return NOTHING
    data = sample([rounds[number] for number in sorted(rounds)])
    return Interval(statistics.median(rounds.values()), *interval(data), len(rounds), data)


def of_row(row: Row) -> Interval:
    """A cell's median time in nanoseconds."""
    return of_median(by_round(row))


def of_difference(first: Rounds, second: Rounds) -> Interval:
    """The median of the differences, round by round, over the rounds that both have."""
    return of_median({number: first[number] - second[number] for number in sorted(first.keys() & second.keys())})


def apart(first: Sequence[float], second: Sequence[float]) -> Ratio:
    """The ratio of the medians of two series that were not measured together: nothing is paired, so less is known.

    The distances of the ends of both intervals from their medians are added in quadrature (MOVER), in logarithms.
    """
    if not first or not second or not statistics.median(second):
        return Ratio(math.nan, math.nan, math.nan, 0)
    over, under = (of_median(dict(enumerate(map(math.log, one)))) for one in (first, second))
    point = over.point - under.point
    low = point - math.hypot(over.point - over.low, under.high - under.point)
    high = point + math.hypot(over.high - over.point, under.point - under.low)
    return Ratio(math.exp(point), math.exp(low), math.exp(high), min(len(first), len(second)))


__all__ = ["NOTHING", "Interval", "Rounds", "apart", "of_difference", "of_median", "of_row"]
