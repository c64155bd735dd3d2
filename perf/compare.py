"""Compares records, commits or subjects: the ratio of medians of every series that both sides have, with intervals.

The second side stands against the first: above 1 the second is slower. Subjects of one record were measured
interleaved and are paired round by round. Two runs were not: what the machine did between them is part of their ratio,
so only what is clear of 1 *and* of what a cell shows against itself within these runs is called a difference.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from reports.records import RecordError, RecordFile, read

from . import noise
from .cells import Cell
from .intervals import apart
from .ratio import Ratio, by_round, median_ns, ratio
from .rows import OK, Row
from .table import by_group


@dataclass(frozen=True)
class Line:
    """One series on both sides."""

    series: str
    first_ns: float
    second_ns: float
    found: Ratio  # second over first
    said: str


@dataclass(frozen=True)
class Comparison:
    """All series that both sides have, and what could not be compared."""

    first: str
    second: str
    lines: list[Line]
    notes: list[str] = field(default_factory=list)

    @property
    def slower(self) -> list[Line]:
        return [line for line in self.lines if line.said == "slower"]

    @property
    def faster(self) -> list[Line]:
        return [line for line in self.lines if line.said == "faster"]


# -- subjects of one record


def subjects(records: Sequence[RecordFile], first: str, second: str) -> Comparison:
    """Two subjects that were measured side by side. The same twice: its cell against the cell's copy."""
    lines, wrong = [], 0
    for rows in _groups(records):
        machine = noise.of_group(rows) if first != second else None
        for row in rows:
            if row["subject"] != first or row["axes"]["copy"] != 1:
                continue
            wanted = {**row["axes"], "subject": second, "copy": 2 if first == second else 1}
            twin = next((other for other in rows if other["axes"] == wanted), None)
            if twin is None:
                continue
            if OK not in (row["status"], twin["status"]) or row["status"] != twin["status"]:
                wrong += 1
                continue
            found = ratio(twin, row)
            cell = Cell(**row["axes"])
            name = f"{cell.shared} | {' · '.join(cell.variant.split(' · ')[1:]) or 'DDP'}"
            lines.append(Line(name, median_ns(row), median_ns(twin), found, noise.judged(found, machine)))
    notes = [f"{wrong} pairs have a side that came to nothing (void, failed, hung or not run)"] if wrong else []
    return Comparison(first, f"{second} again" if first == second else second, lines, notes)


def _groups(records: Sequence[RecordFile]) -> list[list[Row]]:
    return [rows for record in records for rows in by_group(record.rows).values()]


# -- runs


@dataclass
class _Side:
    """What one side measured of a series, over all its records."""

    rounds: list[float] = field(default_factory=list)
    noises: list[Ratio] = field(default_factory=list)


def runs(
    first: Sequence[RecordFile], second: Sequence[RecordFile], names: tuple[str, str], beside: str = ""
) -> Comparison:
    """Two sets of records. With ``beside``, times count as shares of that subject's, measured in the same rounds."""
    one, other = _sides(first, beside), _sides(second, beside)
    both = [key for key in one if key in other]
    lines = [_line(key[0], one[key], other[key], bool(beside)) for key in both]
    notes = _differences(first[-1].header, second[-1].header)
    for side, lacking in ((names[0], len(other) - len(both)), (names[1], len(one) - len(both))):
        if lacking:
            notes.append(f"{lacking} series are not in {side}, or came to nothing there")
    if min(len(first), len(second)) == 1:
        notes.append("one run on a side: what the machine did between the runs cannot be told from what the code did")
    return Comparison(*names, lines, notes)


def _sides(records: Sequence[RecordFile], beside: str) -> dict[tuple[str, str], _Side]:
    """By series and the workload's fingerprint: another workload of the same name is another series."""
    found: dict[tuple[str, str], _Side] = {}
    for rows in _groups(records):
        machine = noise.of_group(rows)
        for row in rows:
            times = _times(row, rows, beside)
            if times:
                side = found.setdefault((row["series"], row["workload_hash"]), _Side())
                side.rounds += times
                side.noises += [machine] if machine is not None else []
    return found


def _times(row: Row, rows: Sequence[Row], beside: str) -> list[float]:
    if row["status"] != OK or row["axes"]["copy"] != 1:
        return []
    mine = by_round(row)
    if not beside:
        return list(mine.values())
    wanted = {**row["axes"], "subject": beside}
    twin = next((each for each in rows if each["axes"] == wanted and each["status"] == OK), None)
    if twin is None or twin is row:
        return []
    theirs = by_round(twin)
    return [mine[number] / theirs[number] for number in sorted(mine.keys() & theirs.keys())]


def _line(series: str, first: _Side, second: _Side, relative: bool) -> Line:
    found = apart(second.rounds, first.rounds)
    shares = [share for one in (*first.noises, *second.noises) if (share := noise.figure(one)) is not None]
    said = found.said
    if said in ("faster", "slower") and shares and max(found.point, 1 / found.point) <= 1 + median(shares):
        said = "within the noise"
    times = (math.nan, math.nan) if relative else (median(first.rounds), median(second.rounds))
    return Line(series, *times, found, said)


def _differences(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[str]:
    """What else is not the same on both sides."""
    pairs = [
        ("processor", first["machine"]["processor"], second["machine"]["processor"]),
        ("cores", first["machine"]["cores"], second["machine"]["cores"]),
        ("host", first["machine"]["host"], second["machine"]["host"]),
        *((name, version, second["versions"].get(name)) for name, version in first["versions"].items()),
        ("environment", first["environment"], second["environment"]),
    ]
    return [f"not the same {what}: {one} and {other}" for what, one, other in pairs if one != other]


# -- finding records


def found_in(folder: Path) -> tuple[list[RecordFile], list[str]]:
    """All whole performance records under a folder, oldest first, and a sentence for each file that is damaged."""
    records, troubles = [], []
    for path in sorted(folder.rglob("*.jsonl")):
        try:
            record = read(path)
        except RecordError as error:
            troubles.append(str(error))
            continue
        if record.header["of"] == "perf":
            records.append(record)
    return sorted(records, key=lambda record: str(record.header["time"])), troubles


def of_commit(records: Sequence[RecordFile], commit: str) -> list[RecordFile]:
    """Those whose header names this commit, or begins like it. A plus at the end stands for changes since."""
    return [
        record
        for record in records
        if record.header["commit"].startswith(commit.rstrip("+"))
        and record.header["commit"].endswith("+") == commit.endswith("+")
    ]


def commits(records: Sequence[RecordFile]) -> list[str]:
    return list(dict.fromkeys(record.header["commit"] for record in records))


# -- words


def verdict(made: Comparison) -> str:
    """The whole in a sentence."""
    unclear = sum(line.said == "not enough runs to tell" for line in made.lines)
    counts = f"{len(made.slower)} slower, {len(made.faster)} faster"
    return f"{made.second} against {made.first}: {len(made.lines)} series, {counts}, {unclear} not enough runs to tell"


def markdown(made: Comparison) -> str:
    """As a Markdown table, those that differ first."""
    lines = [
        f"**{verdict(made)}**", "", f"| series | {made.first}, ms | {made.second}, ms | ratio of medians, 95 % | |",
        "| --- | ---: | ---: | --- | --- |",
    ]  # fmt: skip
    for line in ordered(made):
        words = [line.series.replace("|", "—"), ms(line.first_ns), ms(line.second_ns), str(line.found), line.said]
        lines.append(f"| {' | '.join(words)} |")
    notes = [f"- {note}" for note in made.notes]
    return "\n".join([*lines, "", *notes]).rstrip() + "\n"


def ordered(made: Comparison) -> list[Line]:
    """The slower ones first, then the faster ones, then the others."""
    place = {"slower": 0, "faster": 1}
    return sorted(made.lines, key=lambda line: (place.get(line.said, 2), -line.found.point))


def ms(nanoseconds: float) -> str:
    return f"{nanoseconds / 1e6:.2f}" if nanoseconds == nanoseconds else ""
