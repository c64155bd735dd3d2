"""``python -m perf chart RECORD…``: draws the charts of records, and of traces."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from conformance.bad_input import BadInput
from conformance.engine import request as ask
from reports.records import RecordError, RecordFile, read
from reports.records.lines import loads

from ..charts import draw_all, draw_timeline
from ..charts.reporting import report
from ..measure.reading import read_perf
from ..measure.trace import iterations_of

DAMAGED, INTERNAL, INTERRUPTED = 1, 3, 130


def charted(given: Namespace) -> int:
    """Draw; 1 if a file had to be passed over, 0 if not."""
    out = ask.writable(Path(given.out))
    records, traces, troubles = _read(given.records)
    for trouble in troubles:
        print(f"perf: passed over: {trouble}", file=sys.stderr)
    if troubles:
        print(f"perf: {len(troubles)} of {len(given.records)} files passed over", file=sys.stderr)
    if not records and not traces:
        raise BadInput("none of these files can be drawn; name records (.jsonl) or traces (.trace.json)")
    report(chart for chart in ([*draw_all(records, out)] if records else []))
    report(draw_timeline(trace, out, name) for name, trace in traces)
    return DAMAGED if troubles else 0


def closing(path: Path, traced: bool) -> int:
    """The charts of a sweep that has just ended, and a timeline of what says most in it; returns an exit status."""
    try:
        record = read(path)
        report(draw_all([record], path.parent / "charts"))
        if traced:
            from .trace import at_the_end

            at_the_end(record, path.parent)
    except KeyboardInterrupt:
        print(f"perf: interrupted; the record is whole, and `python -m perf chart {os.path.relpath(path)}` draws it")
        return INTERRUPTED
    except OSError as error:
        print(f"perf: cannot write charts: {error}; the record is whole")
        return INTERNAL
    return 0


def _read(places: Sequence[str]) -> tuple[list[RecordFile], list[tuple[str, dict[str, Any]]], list[str]]:
    """Records, traces by the names of their charts, and a sentence for each file that is neither."""
    records, traces, troubles = [], [], []
    for place in places:
        path = Path(place)
        try:
            if path.name.endswith(".trace.json"):
                traces.append((_name(path), _trace(path)))
            else:
                records.append(read_perf(path))
        except RecordError as error:
            troubles.append(str(error))
    return sorted(records, key=lambda record: str(record.header["time"])), traces, troubles


def _trace(path: Path) -> dict[str, Any]:
    try:
        trace: dict[str, Any] = loads(path.read_text(encoding="utf-8"))
        iterations_of(trace)
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise RecordError(f"{path}: is no trace that `perf trace` wrote: {type(error).__name__}: {error}") from error
    return trace


def _name(path: Path) -> str:
    return "timeline" if path.name.startswith("timeline") else f"timeline-{path.name.removesuffix('.trace.json')}"
