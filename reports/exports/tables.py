"""CSV and JSON of a view."""

from __future__ import annotations

import json
from math import isfinite
from typing import TYPE_CHECKING, Any

from ..judging import JudgedHistory
from .views import VIEWS, Row, plain

if TYPE_CHECKING:
    import pandas as pd

_FORMULA = ("=", "+", "-", "@", "\t", "\r")  # what a spreadsheet would calculate, coming from a name or a note


def as_csv(judged: JudgedHistory, view: str) -> str:
    """Nested values are JSON in their cell; nothing in a name or a note is a formula."""
    import pandas as pd

    return csv_text(pd.DataFrame(VIEWS[view](judged), dtype=object).map(_cell))


def csv_text(frame: pd.DataFrame) -> str:
    """A frame without its index; floats to seven digits, nothing where there is no value."""
    return frame.to_csv(index=False, lineterminator="\n", float_format="%.7g")


def inert(text: str) -> str:
    """A text with a ``'`` before it if a spreadsheet would take it for a formula."""
    return f"'{text}" if text.startswith(_FORMULA) else text


def _cell(value: Any) -> str:
    return inert(value) if isinstance(value, str) else plain(value)


def as_json(judged: JudgedHistory, view: str) -> str:
    """One object: what was judged, when, and the rows."""
    rows: list[Row] = [_finite(row) for row in VIEWS[view](judged)]
    document = {"view": view, "judged": judged.judged, "health": judged.health.value, "rows": rows}
    return json.dumps(document, ensure_ascii=False, indent=1, default=str, allow_nan=False) + "\n"


def _finite(value: Any) -> Any:
    """JSON has no word for NaN and infinity."""
    if isinstance(value, float):
        return value if isfinite(value) else None
    if isinstance(value, dict):
        return {str(name): _finite(each) for name, each in value.items()}
    return [_finite(each) for each in value] if isinstance(value, (list, tuple)) else value
