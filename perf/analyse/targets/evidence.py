"""What the table of targets is made from: the groups of records, what was measured beside them, runs of the suite."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from reports.records import RecordFile

from ...measure.rows import OK, Row
from ...plan.axes import variant_defaults
from ..board import Board, Measured, board
from ..intervals import Interval
from ..signs import significant
from .verdicts import CANNOT_TELL, NOT_MEASURED, Target


@dataclass(frozen=True)
class Part:
    """One figure of a line beside its target. ``found`` is None where it was not measured, and ``why`` says why."""

    name: str
    target: Target
    found: Interval | None
    why: str = ""
    beside: str = ""  # the figure of whom it is compared with, for scale
    noise: float | None = None  # how far from 1 a cell comes out against itself here
    stands: bool = True  # what the interval says, when all the table's verdicts are told together

    @property
    def verdict(self) -> str:
        said = self.target.verdict(self.found)
        return said if self.stands or said == NOT_MEASURED else CANNOT_TELL


def corrected(parts: Sequence[Part]) -> list[Part]:
    """The parts as verdicts that are told together; those that were counted and not measured are certain."""
    places, p_values = [], []
    for place, part in enumerate(parts):
        if part.found is not None and part.found.known and part.found.sample.rounds:
            places.append(place)
            p_values.append(part.target.p_value(part.found))
    stands = dict(zip(places, significant(p_values), strict=True))
    return [replace(part, stands=stands.get(place, True)) for place, part in enumerate(parts)]


class Missing(Exception):
    """A figure's cells are not there; the text says which, or what became of them."""


@dataclass
class Evidence:
    """``ours`` is held against ``theirs``: the first and the last subject that the records were asked for."""

    made: Board
    suite: Sequence[RecordFile] = ()  # records of the suite's quick tier

    @property
    def ours(self) -> str:
        return self.made.subjects[0]

    @property
    def theirs(self) -> str:
        return self.made.subjects[-1]

    def cells(self, **shared: Any) -> Cells:
        """The cells of the groups with these axes."""
        wanted = {"unit": "step", "skew": "even", "optimizer": "sgd", "device": "cpu", **shared}
        kept = [group for group in self.made.groups if all(group.axes[name] == value for name, value in wanted.items())]
        words = ", ".join(str(value) if name == "workload" else f"{name} {value}" for name, value in shared.items())
        return Cells(kept, words, self.ours, self.theirs)

    def part(self, name: str, target: Target, found: Callable[[], tuple[Interval, str, float | None]]) -> Part:
        """A part from what ``found`` returns: figure, words beside it, noise; or why there is none."""
        try:
            figure, beside, noise = found()
        except Missing as missing:
            return Part(name, target, None, str(missing))
        return Part(name, target, figure, beside=beside, noise=noise)


@dataclass(frozen=True)
class Cells:
    """The cells of some groups that differ in no shared axis; a figure takes all its cells from one group."""

    groups: list[Measured]
    words: str
    ours: str
    theirs: str

    def together(self, *wanted: dict[str, Any]) -> tuple[list[Row], float | None]:
        """The rows with these axes, all of one group (what is not said is plain), and the noise of that group."""
        if not self.groups:
            raise Missing(f"no cells of {self.words}")
        troubles: list[str] = []
        for group in self.groups:
            rows = [group.one(**variant_defaults(**axes)) for axes in wanted]
            found = [row for row in rows if row is not None and row["status"] == OK]
            if len(found) == len(rows):
                return found, group.noise
            axes, row = next(both for both in zip(wanted, rows, strict=True) if both[1] not in found)
            words = " ".join(str(value) for value in axes.values())
            troubles.append(f"{words}: {row['status']}" if row else f"{words}: {NOT_MEASURED}")
        raise Missing(troubles[0])

    def sound(self, **axes: Any) -> list[Row]:
        """All sound rows with these axes, of the first group that has any."""
        for group in self.groups:
            found = [row for row in group.find(**axes) if row["status"] == OK]
            if found:
                return found
        if not self.groups:
            raise Missing(f"no cells of {self.words}")
        raise Missing(f"{' '.join(map(str, axes.values()))}: {NOT_MEASURED}")


def gathered(records: Sequence[RecordFile], suite: Sequence[RecordFile] = ()) -> Evidence:
    """The evidence of records of perf (where several say the same the last counts), and of records of the suite."""
    return Evidence(board(records), suite)


def lasted_s(record: RecordFile) -> float:
    """The wall-clock time of a run, from its header to its footer."""
    assert record.footer is not None
    began, ended = (datetime.fromisoformat(text) for text in (record.header["time"], record.footer["finished"]))
    return (ended - began).total_seconds()
