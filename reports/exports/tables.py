"""CSV and JSON of a view."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable
from math import isfinite
from typing import Any

from ..judging import JudgedHistory
from .views import VIEWS, Row, plain

_FORMULA = ("=", "+", "-", "@", "\t", "\r")  # what a spreadsheet would calculate, coming from a name or a note


def as_csv(judged: JudgedHistory, view: str) -> str:
    """Nested values are JSON in their cell; a text that spreadsheets take for a formula gets a ``'`` before it."""
    rows = list(VIEWS[view](judged))
    return csv_text(list(rows[0]) if rows else [], ([_cell(value) for value in row.values()] for row in rows))


def csv_text(header: list[str], rows: Iterable[list[str]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return text.getvalue()


def _cell(value: Any) -> str:
    text = plain(value)
    return f"'{text}" if isinstance(value, str) and text.startswith(_FORMULA) else text


def as_json(judged: JudgedHistory, view: str) -> str:
    """One object: what was judged, when, and the rows."""
    rows: list[Row] = [_finite(row) for row in VIEWS[view](judged)]
    told = {"view": view, "judged": judged.judged, "health": judged.health.value, "rows": rows}
    return json.dumps(told, ensure_ascii=False, indent=1, default=str, allow_nan=False) + "\n"


def _finite(value: Any) -> Any:
    """JSON has no word for NaN and infinity."""
    if isinstance(value, float):
        return value if isfinite(value) else None
    if isinstance(value, dict):
        return {str(name): _finite(each) for name, each in value.items()}
    return [_finite(each) for each in value] if isinstance(value, (list, tuple)) else value
