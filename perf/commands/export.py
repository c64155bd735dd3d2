"""``python -m perf export RECORD…``: records as one tidy table, for pandas, R or a spreadsheet."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import pandas as pd

from conformance.bad_input import BadInput
from reports.exports.tables import inert
from reports.records import RecordFile

from ..analyse.frames import cells, samples
from .table import of_perf


def exported(given: Namespace) -> int:
    """Write the table; 0 whatever became of its cells."""
    if given.form == "parquet" and find_spec("pyarrow") is None:
        raise BadInput("--form parquet needs pyarrow, which is not installed: `pip install pyarrow`, or --form csv")
    if given.form == "parquet" and not given.out:
        raise BadInput("--form parquet is no text: name a file with --out")
    frame = tidy(of_perf(given.records), given.samples)
    try:
        _write(frame, given.form, given.out)
    except OSError as error:
        raise BadInput(f"cannot write {given.out}: {error.strerror or error}; give another file with --out") from error
    return 0


def tidy(records: Sequence[RecordFile], every_sample: bool = False) -> pd.DataFrame:
    """The cells of all records, or their samples, one record under the other."""
    frames = []
    for record in records:
        frame = samples(record.rows) if every_sample else cells(record.rows)
        frame.insert(0, "record", record.path.name)
        frame.insert(1, "commit", record.header["commit"])
        frames.append(frame)
    return pd.concat(frames, ignore_index=True)


def _write(frame: pd.DataFrame, form: str, place: str) -> None:
    if form == "parquet":
        frame.to_parquet(place, index=False)
    elif form == "csv":  # packed, if the name ends with .gz, say
        _inert(frame).to_csv(place or sys.stdout, index=False, lineterminator="\n", errors="replace")
    elif place:
        Path(place).write_text(_json(frame), encoding="utf-8", errors="replace")
    else:
        sys.stdout.write(_json(frame))


def _inert(frame: pd.DataFrame) -> pd.DataFrame:
    """Nothing in a name or a reason is a formula."""
    texts = map(str, pd.unique(frame.select_dtypes(exclude=["number", "bool"]).to_numpy().ravel()))
    return frame.replace({text: inert(text) for text in texts if text != inert(text)})


def _json(frame: pd.DataFrame) -> str:
    """By the standard library: ``to_json`` has 15 decimal places at most, which makes 0 of a small share."""
    finite = frame.astype(object).where(frame.notna() & ~frame.isin([float("inf"), float("-inf")]), None)
    return json.dumps(finite.to_dict("records"), ensure_ascii=False, indent=1, allow_nan=False) + "\n"
