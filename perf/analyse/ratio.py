"""Compares two cells that were measured interleaved: the median of their rounds' ratios, with an interval.

The turns of one round stand side by side in time and are divided one by the other, so what disturbs the machine for a
while disturbs both and cancels.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from .signs import Interval, interval, less_p, more_p, sample, significant

SAME = 0.05  # an interval within this distance of 1 shows that there is no difference worth the name

UNCLEAR = "not enough runs to tell"

Row = Mapping[str, Any]


class Ratio(Interval):
    """The first cell's time over the second's."""

    @property
    def said(self) -> str:
        """What the interval allows to say, if this is the only ratio that is asked about; see ``verdicts``."""
        if not self.known:
            return UNCLEAR
        if self.high < 1:
            return "faster"
        if self.low > 1:
            return "slower"
        return "same" if self.low >= 1 - SAME and self.high <= 1 + SAME else UNCLEAR

    def __str__(self) -> str:
        if not self.known:
            return f"{self.point:.2f}"
        return f"{self.point:.2f} [{self.low:.2f}, {self.high:.2f}]"


def verdicts(found: Sequence[Ratio]) -> list[str]:
    """What ratios of rounds allow to say that are told together: corrected for how many they are."""
    known = [place for place, one in enumerate(found) if one.known]
    samples = [found[place].sample for place in known]
    differs = significant([2 * min(less_p(one, 1.0), more_p(one, 1.0)) for one in samples])
    same = significant([2 * max(less_p(one, 1 + SAME), more_p(one, 1 - SAME)) for one in samples])
    said = [UNCLEAR] * len(found)
    for place, apart, alike in zip(known, differs, same, strict=True):
        if apart or alike:
            said[place] = ("faster" if found[place].point < 1 else "slower") if apart else "same"
    return said


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


def cpu_ns(row: Row) -> float:
    """The main thread's time on the processor, of the busiest rank, median over rounds; NaN without samples."""
    rounds = by_round(row, row["cpu_ns"])
    return statistics.median(rounds.values()) if rounds else math.nan


def ratio(first: Row, second: Row) -> Ratio:
    """The first cell against the second; both must be of one group of one run."""
    return paired(by_round(first), by_round(second))


def paired(first: Mapping[int, float], second: Mapping[int, float]) -> Ratio:
    """The median of the ratios of two series of rounds, over the rounds that both have."""
    both = sorted(first.keys() & second.keys())
    if not both or not all(second[number] > 0 for number in both):
        return Ratio(math.nan, math.nan, math.nan, len(both))
    data = sample([first[number] for number in both], [second[number] for number in both])
    point = statistics.median(first[number] / second[number] for number in both)
    return Ratio(point, *interval(data), len(both), data)
