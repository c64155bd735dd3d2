"""Which costs grow with what: series of points from a record's rows, each with the law that it should follow."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from reports.records import RecordFile

from ...measure.rows import OK, Row
from ...plan.axes import variant_defaults
from ...workloads import COUNTS
from ..board import Board, Measured, board
from ..intervals import Rounds, of_median
from ..ratio import by_round, median_ns
from .laws import LINEAR, LOG, NONE, Fit, Point, best, said

RANKS, PARAMETERS, BUCKETS, SKEW = "ranks", "parameters", "buckets", "skew, %"
_NORMAL = 1.96  # half of a 95 % interval in standard errors


@dataclass(frozen=True)
class Series:
    """One cost of one subject against one thing, in milliseconds."""

    cost: str
    against: str
    subject: str
    points: tuple[Point, ...]
    expected: str
    why: str
    lost: tuple[tuple[float, str], ...] = ()  # where it was measured in vain, and what became of the cell

    @cached_property
    def fit(self) -> Fit | None:
        return best(self.points)

    @cached_property
    def verdict(self) -> str:
        return said(self.points, self.expected)


@dataclass(frozen=True)
class _Cost:
    name: str
    of: Callable[[Measured, str, float], Rounds | None]  # nanoseconds by round; of a group, a subject, a bucket cap
    optimizer: str
    expected: dict[str, tuple[str, str]]  # law and reason, by what it grows with


def series(records: Sequence[RecordFile]) -> list[Series]:
    """Everything that the records let grow, in the order of the table."""
    return of_board(board(records))


def of_board(made: Board) -> list[Series]:
    cores = int(made.headers[-1]["machine"]["cores"])
    found = [*_of_cells(made, cores), *_of_runs(made), *_of_checks(made, cores)]
    return [one for one in found if len(one.points) > 2]


def _of_cells(made: Board, cores: int) -> Iterator[Series]:
    for cost in _COSTS:
        for against, places in _AXES.items():
            law, why = cost.expected.get(against) or _shared(made, cores)
            for subject in made.subjects:
                points: list[Point] = []
                lost: list[tuple[float, str]] = []
                for x, group, cap in places(made, cost, subject):
                    rounds = cost.of(group, subject, cap)
                    points += _point(x, rounds, _level_ns(group, subject, cap))
                    lost += [] if rounds else [(x, status) for status in _disturbed(group, subject, cap)]
                yield Series(cost.name, against, subject, tuple(sorted(points, key=_by_x)), law, why, tuple(lost))


def _level_ns(group: Measured, subject: str, cap: float) -> float:
    """The time of a plain step, of which an added time is the difference between two."""
    row = _plain(group, subject, cap)
    return median_ns(row) if row else 0.0


def _disturbed(group: Measured, subject: str, cap: float) -> list[str]:
    """What became of the cells, of those that came to nothing."""
    return [row["status"] for row in group.find(subject=subject, cap_mib=cap) if row["status"] != OK][:1]


def _by_x(point: Point) -> float:
    return point.x


def _shared(made: Board, cores: int) -> tuple[str, str]:
    """What ranks do to a time: messages in rounds, or, where there are more than cores, their turns on these."""
    most = max((group.axes["world"] for group in made.groups), default=1)
    return (LINEAR, f"ranks share {cores} cores") if most > cores else (LOG, "messages go in rounds")


# -- what a cost is


def _plain(group: Measured, subject: str, cap: float, **axes: Any) -> Row | None:
    row = group.one(**variant_defaults(subject=subject, cap_mib=cap, **axes))
    return row if row is not None and row["status"] == OK else None


def _step(group: Measured, subject: str, cap: float) -> Rounds | None:
    row = _plain(group, subject, cap)
    return by_round(row) if row else None


def _added(group: Measured, subject: str, cap: float) -> Rounds | None:
    """What Join adds to an iteration."""
    plain, joined = _plain(group, subject, cap), _plain(group, subject, cap, strategy="join")
    if plain is None or joined is None:
        return None
    below, above = by_round(plain), by_round(joined)
    return {number: above[number] - below[number] for number in above.keys() & below.keys()}


def _zero(group: Measured, subject: str, cap: float) -> Rounds | None:
    """The optimizer's step alone."""
    row = _plain(group, subject, cap, zero="on")
    return by_round(row, row["phases"]["step_wall"]) if row else None


def _overlapped(group: Measured, subject: str, cap: float) -> Rounds | None:
    row = _plain(group, subject, cap, zero="on", hook="sequential")
    return by_round(row) if row else None


_PER_PARAMETER = (LINEAR, "the host serves each")
_PER_MESSAGE = (LINEAR, "a message for each")
_COSTS = (
    _Cost("DDP step", _step, "sgd", {PARAMETERS: _PER_PARAMETER, BUCKETS: _PER_MESSAGE}),
    _Cost("added by Join", _added, "sgd",
          {PARAMETERS: (NONE, "a message an iteration"), BUCKETS: (NONE, "a message an iteration")}),
    _Cost("ZeRO step", _zero, "adam", {PARAMETERS: _PER_PARAMETER}),
    _Cost("overlapped step", _overlapped, "adam", {PARAMETERS: _PER_PARAMETER, BUCKETS: _PER_MESSAGE}),
)  # fmt: skip


# -- what it grows with


def _steps_of(made: Board, cost: _Cost, **shared: Any) -> Iterator[Measured]:
    wanted = {"workload": "tiny", "unit": "step", "skew": "even", "optimizer": cost.optimizer, **shared}
    return (group for group in made.groups if all(group.axes[name] == value for name, value in wanted.items()))


def _by_ranks(made: Board, cost: _Cost, _: str) -> Iterator[_Place]:
    return ((group.axes["world"], group, 0.0) for group in _steps_of(made, cost, size="100"))


def _by_parameters(made: Board, cost: _Cost, _: str) -> Iterator[_Place]:
    return ((int(size), group, 0.0) for size in COUNTS for group in _steps_of(made, cost, size=size, world=2))


def _by_buckets(made: Board, cost: _Cost, subject: str) -> Iterator[_Place]:
    """As many as reductions were counted; a cap is only a wish."""
    if cost.of is _zero:
        return
    hook = "sequential" if cost.of is _overlapped else "none"
    for group in _steps_of(made, cost, size="cpu", world=2):
        for row in group.find(subject=subject, hook=hook, strategy="plain"):
            if row["axes"]["cap_mib"] and "reductions" in row["derived"]:
                yield row["derived"]["reductions"], group, row["axes"]["cap_mib"]


_Place = tuple[float, Measured, float]  # where it is, the group, the bucket cap
_AXES: dict[str, Callable[[Board, _Cost, str], Iterator[_Place]]] = {
    RANKS: _by_ranks, PARAMETERS: _by_parameters, BUCKETS: _by_buckets,
}  # fmt: skip


def _of_runs(made: Board) -> Iterator[Series]:
    """Whole uneven runs under Join, against how much shorter the shortest rank's are."""
    for subject in made.subjects:
        points: list[Point] = []
        for group in made.groups:
            axes = group.axes
            if (axes["workload"], axes["unit"], axes["skew"], axes["world"]) == ("light", "epoch", "halves", 2):
                row = _plain(group, subject, 0.0, strategy="join")
                points += _point(100 * axes["skew_fraction"], by_round(row) if row else None)
        why = "the longest rank decides"
        yield Series("run under Join", SKEW, subject, tuple(sorted(points, key=_by_x)), NONE, why)


def _of_checks(made: Board, cores: int) -> Iterator[Series]:
    """A check of the suite, against ranks: it is the suite's own cost, whatever the subject."""
    samples = made.beside.get("checks", {})
    if samples:
        points = [point for world, taken in samples.items() for point in _point(int(world), dict(enumerate(taken)))]
        why = f"ranks share {cores} cores" if max(map(int, samples)) > cores else "each is started"
        yield Series("conformance check", RANKS, "suite", tuple(sorted(points, key=_by_x)), LINEAR, why)


def _point(x: float, rounds: Rounds | None, level_ns: float = 0.0) -> Iterator[Point]:
    if not rounds:
        return
    found = of_median(rounds).scaled(1e-6)
    error = (found.high - found.low) / (2 * _NORMAL) if found.known else _of_few(list(rounds.values())) / 1e6
    yield Point(float(x), found.point, error, level_ns / 1e6)


def _of_few(values: Sequence[float]) -> float:
    """The standard error of a median of a few values, enlarged as Student says, since their scatter is hardly known."""
    from scipy.stats import t

    if len(values) < 2:
        return abs(values[0])
    enlarged = float(t.ppf(0.975, len(values) - 1)) / _NORMAL
    return 1.25 * enlarged * statistics.stdev(values) / math.sqrt(len(values))
