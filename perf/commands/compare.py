"""``python -m perf compare A B``: two records, two commits or two subjects, as a table and as Markdown."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.table import Table
from rich.text import Text

from conformance.bad_input import BadInput
from reports.records import RecordFile

from ..analyse import compare
from ..analyse.table import wide_console
from ..measure.reading import asked_for
from ..plan.axes import nearest
from .table import write_text

SLOWER, UNDECIDED = 1, 2


def compared(given: Namespace) -> int:
    """Compare; 1 if anything is clearly slower, 0 if not, 2 if too few runs or rounds can tell nothing."""
    made = _made(given)
    if not made.lines:
        notes = f" ({'; '.join(made.notes)})" if made.notes else ""
        raise BadInput(f"{made.first} and {made.second} have no series in common{notes}; `perf show` lists a record's")
    if given.markdown == "-":
        print(compare.markdown(made), end="")
    else:
        _print(made)
        if given.markdown:
            write_text(given.markdown, compare.markdown(made))
    if made.undecidable:
        return UNDECIDED
    return SLOWER if made.slower else 0


def _made(given: Namespace) -> compare.Comparison:
    by = given.by or ("record" if _is_place(given.first) and _is_place(given.second) else "")
    if by == "record":
        return compare.runs(_of(given.first), _of(given.second), (given.first, given.second), given.beside)
    if not Path(given.records).exists():
        raise BadInput(f"{given.records}, where {given.first!r} was looked for, is not there; name one with --records")
    records = _of(given.records)
    if by == "commit" or (not by and not _is_subject(records, given.first)):
        first, second = (_committed(records, name, given.records) for name in (given.first, given.second))
        return compare.runs(first, second, (given.first, given.second), given.beside)
    for name in (given.first, given.second):
        if not _is_subject(records, name):
            raise BadInput(f"no cell of subject {name!r} is in {given.records}; {nearest(name, _subjects(records))}")
    return _side_by_side(records, given)


def _side_by_side(records: Sequence[RecordFile], given: Namespace) -> compare.Comparison:
    """Two subjects in the latest record that has both."""
    having = [record for record in records if {given.first, given.second} <= set(_subjects([record]))]
    if not having:
        raise BadInput(
            f"{given.first} and {given.second} stand in no record of {given.records} together; subjects are compared "
            f"where they were measured side by side: make perf SUBJECT={given.first},{given.second}"
        )
    made = compare.subjects(having[-1:], given.first, given.second)
    return replace(made, notes=[*made.notes, f"measured side by side in {having[-1].path}"])


def _is_place(name: str) -> bool:
    """Whether a record or a folder is meant, even if there is none."""
    return Path(name).exists() or "/" in name or name.endswith(".jsonl")


def _of(place: str) -> list[RecordFile]:
    """One record, or all records under a folder; damaged ones are named, passed over and counted."""
    path = Path(place)
    if not path.is_dir():
        record = asked_for(path)
        if not record.complete:
            print(f"perf: {path}: not brought to its end; what it has is compared", file=sys.stderr)
        return [record]
    records, troubles = compare.found_in(path)
    for trouble in troubles:
        print(f"perf: passed over: {trouble}", file=sys.stderr)
    if troubles:
        print(f"perf: {len(troubles)} of {len(troubles) + len(records)} records passed over", file=sys.stderr)
    if not records:
        raise BadInput(f"no whole performance record is under {path}; `make perf` writes some")
    return records


def _committed(records: Sequence[RecordFile], commit: str, place: str) -> list[RecordFile]:
    found = compare.of_commit(records, commit)
    if not found:
        known = ", ".join(each[:12] + "+" * each.endswith("+") for each in compare.commits(records))
        raise BadInput(f"{commit!r} is no file, no subject and no commit of a record in {place}; there are {known}")
    return found


def _subjects(records: Sequence[RecordFile]) -> list[str]:
    return sorted({row["subject"] for record in records for row in record.rows if row["subject"] != "none"})


def _is_subject(records: Sequence[RecordFile], name: str) -> bool:
    return name in _subjects(records)


def _print(made: compare.Comparison) -> None:
    console = wide_console()
    table = Table(box=None, pad_edge=False, show_edge=False)
    table.add_column("series", overflow="fold")
    for heading in ("first, ms", "second, ms"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("second / first, 95 %", no_wrap=True)
    table.add_column("lag 1", justify="right", no_wrap=True)
    table.add_column("second is", no_wrap=True)
    styles = {"slower": "red", "faster": "green"}
    for line in compare.ordered(made):
        words = [line.series, compare.ms(line.first_ns), compare.ms(line.second_ns), str(line.found), line.lag_1]
        table.add_row(*map(Text, words), Text(line.said, style=styles.get(line.said, "")))
    console.print(f"first: {made.first}\nsecond: {made.second}", markup=False, soft_wrap=True)
    console.print(table)
    for note in made.notes:
        console.print(f"note: {note}", markup=False, soft_wrap=True)
    console.print(compare.verdict(made), markup=False, soft_wrap=True)
