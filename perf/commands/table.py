"""``python -m perf table RECORD…``: the table of targets, from one or more records, as text and as Markdown."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from conformance.bad_input import BadInput
from reports.records import RecordError, RecordFile, read

from ..analyse.table import wide_console
from ..analyse.targets.evidence import gathered
from ..analyse.targets.printing import as_markdown, as_text, judged
from ..measure.reading import asked_for


def tabled(given: Namespace) -> int:
    """Print the table; 0 whatever it says: it is a report, and `compare` is the alarm."""
    records = of_perf(given.records)
    evidence = gathered(records, [_of_suite(place) for place in given.suite])
    if not evidence.made.subjects:
        raise BadInput("no cell of these records was measured; name the record of `make perf SWEEP=impl-vs-torch`")
    lines = judged(evidence)
    text = as_markdown(lines, evidence.ours, evidence.theirs)
    if given.markdown == "-":
        sys.stdout.write(text)
        return 0
    wide_console().print(as_text(lines, evidence.ours, evidence.theirs), soft_wrap=True)
    if given.markdown:
        write_text(given.markdown, text)
    return 0


def of_perf(places: Sequence[str]) -> list[RecordFile]:
    """Records of perf, the oldest first; one that is still being written counts as far as it goes."""
    found = [asked_for(place) for place in places]
    return sorted(found, key=lambda record: str(record.header["time"]))


def write_text(place: str, text: str) -> None:
    try:
        Path(place).parent.mkdir(parents=True, exist_ok=True)
        Path(place).write_text(text, encoding="utf-8")
    except OSError as error:
        raise BadInput(f"cannot write {place}: {error.strerror}; give another file with --markdown") from error


def _of_suite(place: str) -> RecordFile:
    try:
        record = read(place, partial=True)
    except RecordError as error:
        raise BadInput(str(error)) from error
    if record.header["of"] != "conformance" or not record.complete:
        raise BadInput(f"{place}: is no whole record of the suite; `make conformance` leaves one in its OUT")
    return record

