"""Compares records, commits or subjects: how every series that both sides have differs, with intervals.

The second side stands against the first: above 1 the second is slower. Subjects of one record were measured interleaved
and are paired round by round. Two runs were not: what the machine did between them is in every round of a run alike, so
a run counts as one number for each series, whatever its rounds, and how far the runs of a side lie apart is the noise.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from reports.records import RecordError, RecordFile, read

from ..measure.reading import usable
from ..measure.rows import OK, Row, sibling
from ..plan.cells import Cell
from . import noise
from .ratio import SAME, UNCLEAR, Ratio, by_round, median_ns, ratio
from .signs import LEVEL, correlation, significant
from .table import by_group

LEAST_RUNS = 4  # of a side: with fewer their scatter is hardly known, and nothing can be told
FEW = "cannot tell: too few runs"


@dataclass(frozen=True)
class Line:
    """One series on both sides."""

    series: str
    first_ns: float
    second_ns: float
    found: Ratio  # second over first
    said: str  # corrected for how many series are compared

    @property
    def lag_1(self) -> str:
        return correlation(self.found.sample)


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

    @property
    def undecidable(self) -> bool:
        """Whether there are too few runs, or rounds, to tell anything of any series."""
        return not any(line.found.known for line in self.lines)


# -- subjects of one record


def subjects(records: Sequence[RecordFile], first: str, second: str) -> Comparison:
    """Two subjects that were measured side by side. The same twice: its cell against the cell's copy."""
    pairs: list[tuple[Row, Row, Ratio | None]] = []
    wrong = 0
    for rows in _groups(records):
        machine = noise.of_group(rows) if first != second else None
        for row in rows:
            if row["subject"] != first or row["axes"]["copy"] != 1:
                continue
            duplicate = sibling(row, rows, subject=second, copy=2 if first == second else 1)
            if duplicate is None:
                continue
            if OK not in (row["status"], duplicate["status"]) or row["status"] != duplicate["status"]:
                wrong += 1
                continue
            pairs.append((row, duplicate, machine))
    found = [ratio(duplicate, row) for row, duplicate, _ in pairs]
    said = noise.verdicts([(one, machine) for one, (_, _, machine) in zip(found, pairs, strict=True)])
    lines = [
        Line(_name(row), median_ns(row), median_ns(duplicate), one, word)
        for (row, duplicate, _), one, word in zip(pairs, found, said, strict=True)
    ]
    came = "1 pair has" if wrong == 1 else f"{wrong} pairs have"
    notes = [f"{came} a side that came to nothing (void, failed, hung or not run)"] if wrong else []
    return Comparison(first, f"{second} again" if first == second else second, lines, notes)


def _name(row: Row) -> str:
    """What both sides share, and the variant without its subject."""
    cell = Cell(**row["axes"])
    return f"{cell.shared} | {' · '.join(cell.variant.split(' · ')[1:]) or 'DDP'}"


def _groups(records: Sequence[RecordFile]) -> list[list[Row]]:
    return [rows for record in records for rows in by_group(record.rows).values()]


# -- runs


def runs(
    first: Sequence[RecordFile], second: Sequence[RecordFile], names: tuple[str, str], beside: str = ""
) -> Comparison:
    """Two sets of records. With ``beside``, times count as shares of that subject's, measured in the same rounds."""
    one, other = _sides(first, beside), _sides(second, beside)
    both = [key for key in one if key in other]
    lines = over_runs([(key[0], one[key], other[key]) for key in both], bool(beside))
    notes = _differences(first[-1].header, second[-1].header)
    for side, lacking in ((names[0], len(other) - len(both)), (names[1], len(one) - len(both))):
        if lacking:
            notes.append(f"{lacking} series {'is' if lacking == 1 else 'are'} not in {side}, or came to nothing there")
    if any(line.said == FEW for line in lines):
        notes.append(
            f"{LEAST_RUNS} runs of each side are needed, and there are {len(first)} and {len(second)}: with fewer, "
            "what the machine did between the runs cannot be told from what the code did"
        )
    return Comparison(*names, lines, notes)


def _sides(records: Sequence[RecordFile], beside: str) -> dict[tuple[str, str], list[float]]:
    """A number for each run, by series and the workload's fingerprint: another workload of the same name is another."""
    import pandas as pd

    times = pd.DataFrame(
        [(row["series"], row["workload_hash"], run, time) for run, record in enumerate(records)
         for rows in by_group(record.rows).values() for row in rows for time in _times(row, rows, beside)],
        columns=["series", "workload_hash", "run", "time"],
    )  # fmt: skip
    medians = times.groupby(["series", "workload_hash", "run"], sort=False)["time"].median()
    by_series = medians.groupby(["series", "workload_hash"], sort=False)
    return {(str(series), str(fingerprint)): list(found) for (series, fingerprint), found in by_series}


def _times(row: Row, rows: Sequence[Row], beside: str) -> list[float]:
    if row["status"] != OK or row["axes"]["copy"] != 1:
        return []
    mine = by_round(row)
    if not beside:
        return list(mine.values())
    duplicate = sibling(row, rows, subject=beside)
    if duplicate is None or duplicate is row or duplicate["status"] != OK:
        return []
    theirs = by_round(duplicate)
    return [mine[number] / theirs[number] for number in sorted(mine.keys() & theirs.keys())]


def over_runs(sides: Sequence[tuple[str, Sequence[float], Sequence[float]]], relative: bool = False) -> list[Line]:
    """Series, each with a number for every run of both sides; ``relative``: they are no times.

    Welch's test of the logarithms decides; verdicts are corrected for the number of series.
    """
    tested = [_welch(first, second) for _, first, second in sides]
    enough = [place for place, one in enumerate(tested) if one.found.known]
    differs = dict(zip(enough, significant([tested[place].differs for place in enough]), strict=True))
    same = dict(zip(enough, significant([tested[place].same for place in enough]), strict=True))
    made = []
    for place, (series, first, second) in enumerate(sides):
        found = tested[place].found
        said = UNCLEAR if found.known else FEW
        if differs.get(place) or same.get(place):
            said = ("faster" if found.point < 1 else "slower") if differs[place] else "same"
        times = (math.nan, math.nan) if relative else (median(first), median(second))
        made.append(Line(series, *times, found, said))
    return made


@dataclass(frozen=True)
class _Tested:
    """The geometric mean of the second side's runs over that of the first, and p of what may be said of it."""

    found: Ratio
    differs: float = 1.0
    same: float = 1.0  # that it is nearer to 1 than ``SAME``


def _welch(first: Sequence[float], second: Sequence[float]) -> _Tested:
    import numpy as np
    from scipy.stats import ttest_ind

    above, below = np.log(second), np.log(first)
    point, fewest = math.exp(above.mean() - below.mean()), min(len(above), len(below))
    if fewest < LEAST_RUNS:
        return _Tested(Ratio(point, math.nan, math.nan, fewest))
    if not above.std() and not below.std():  # made by hand: measured runs differ
        return _Tested(Ratio(point, point, point, fewest), float(point == 1), float(abs(point - 1) > SAME))
    test = ttest_ind(above, below, equal_var=False)
    low, high = (math.exp(end) for end in test.confidence_interval(LEVEL))
    under = ttest_ind(above - math.log(1 + SAME), below, equal_var=False, alternative="less").pvalue
    over = ttest_ind(above - math.log(1 - SAME), below, equal_var=False, alternative="greater").pvalue
    return _Tested(Ratio(point, low, high, fewest), float(test.pvalue), 2 * float(max(under, over)))


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
            if record.header["of"] == "perf":
                records.append(usable(record))
        except RecordError as error:
            troubles.append(str(error))
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
    unclear = sum(line.said in (UNCLEAR, FEW) for line in made.lines)
    counts = f"{len(made.slower)} slower, {len(made.faster)} faster, of {unclear} nobody can tell"
    corrected = "; corrected for their number by Benjamini and Hochberg" if len(made.lines) > 1 else ""
    return f"{made.second} against {made.first}: {len(made.lines)} series, {counts}{corrected}"


def markdown(made: Comparison) -> str:
    """As a Markdown table, those that differ first."""
    lines = [
        f"**{verdict(made)}**", "", f"| series | {made.first}, ms | {made.second}, ms | ratio, 95 % | lag 1 | |",
        "| --- | ---: | ---: | --- | ---: | --- |",
    ]  # fmt: skip
    for line in ordered(made):
        words = [line.series.replace("|", "—"), ms(line.first_ns), ms(line.second_ns), str(line.found), line.lag_1,
                 line.said]  # fmt: skip
        lines.append(f"| {' | '.join(words)} |")
    notes = [f"- {note}" for note in made.notes]
    return "\n".join([*lines, "", *notes]).rstrip() + "\n"


def ordered(made: Comparison) -> list[Line]:
    """The slower ones first, then the faster ones, then the others."""
    place = {"slower": 0, "faster": 1}
    return sorted(made.lines, key=lambda line: (place.get(line.said, 2), -line.found.point))


def ms(nanoseconds: float) -> str:
    return f"{nanoseconds / 1e6:.2f}" if nanoseconds == nanoseconds else ""
