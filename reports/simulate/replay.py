"""Replays simulated years through the real judgement, reruns included, and through simpler ones for comparison."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ..judging.parameters import Parameters
from ..judging.reference import Counts, Flags, Floats
from ..judging.watch import Watch
from .year import Year


@dataclass(frozen=True)
class Replay:
    """What was said of a year; (series, nights) arrays."""

    year: Year
    verdicts: Flags  # something was compared with something
    alarms: Flags  # a regression was confirmed on this night
    gains: Flags  # an improvement was
    reruns: float  # share of the verdicts for which the series was measured again
    spans: Counts  # nights since the change, where one was found


def replay(year: Year, parameters: Parameters) -> Replay:
    """The real thing: ``judging.Watch``. A year with another machine is judged as two histories, as it would be."""
    nights = year.world.nights
    cut = year.world.other_machine
    pieces = [(0, cut), (cut, nights)] if cut else [(0, nights)]
    shape = year.first.shape
    verdicts, alarms, gains = (np.zeros(shape, dtype=np.bool_) for _ in range(3))
    spans = np.zeros(shape, dtype=np.int64)
    again = 0
    for start, end in pieces:
        watch = Watch(shape[0], parameters)
        for night in range(start, end):
            first = year.first[:, night]
            look = watch.look(first)
            doubtful = watch.doubtful(look)
            again += int(doubtful.sum())
            whole = np.median(np.concatenate([first[None], year.again[:, :, night]]), axis=0)
            step = watch.take(np.where(doubtful, whole, first), reference=look.reference)
            verdicts[:, night] = step.present & ~step.learning
            alarms[:, night], gains[:, night] = step.regressed, step.improved
            spans[:, night] = np.where(step.regressed | step.improved, step.look.span, 0)
    return Replay(year, verdicts, alarms, gains, again / max(1, int(verdicts.sum())), spans)


def threshold(year: Year, limit: float = 0.10, window: int = 20) -> Replay:
    """The plain rule: tonight is ``limit`` slower than the median of the last nights. One alarm for each excursion."""
    shape = year.first.shape
    verdicts, alarms = (np.zeros(shape, dtype=np.bool_) for _ in range(2))
    above = np.zeros(shape[0], dtype=np.bool_)
    for night in range(1, shape[1]):
        tonight, before = year.first[:, night], year.first[:, max(0, night - window) : night]
        if np.isnan(tonight).all() or np.isfinite(before).all(axis=0).sum() < 10:
            continue
        over = tonight - np.nanmedian(before, axis=1) > np.log1p(limit)
        verdicts[:, night], alarms[:, night] = True, over & ~above
        above = over
    return Replay(year, verdicts, alarms, np.zeros(shape, dtype=np.bool_), 0.0, np.zeros(shape, dtype=np.int64))


def change_points(year: Year, find: Callable[[Floats], list[int]], delay: int = 1) -> Replay:
    """A change-point search over everything so far, every ``delay`` nights; a new point that points upwards alarms."""
    shape = year.first.shape
    verdicts, alarms = (np.zeros(shape, dtype=np.bool_) for _ in range(2))
    for one in range(shape[0]):
        there = np.flatnonzero(np.isfinite(year.first[one]))
        values = year.first[one, there]
        known: list[int] = []
        for seen in range(20, len(there) + 1, delay):
            verdicts[one, there[seen - 1]] = True
            points = find(values[:seen])
            fresh = [point for point in points if all(abs(point - old) > 5 for old in known)]
            known += fresh
            alarms[one, there[seen - 1]] = any(_upwards(values[:seen], points, point) for point in fresh)
    return Replay(year, verdicts, alarms, np.zeros(shape, dtype=np.bool_), 0.0, np.zeros(shape, dtype=np.int64))


def _upwards(values: Floats, points: list[int], point: int) -> bool:
    """Whether the level rises at a change point, judged by the segments on either side."""
    edges = [0, *sorted(points), len(values)]
    place = edges.index(point)
    return bool(values[point : edges[place + 1]].mean() > values[edges[place - 1] : point].mean())
