"""The suite's power as last measured: ``HISTORY/power/<time>-<seed>.jsonl``, records of the kind "power"."""

from __future__ import annotations

from pathlib import Path

from ..records import RecordError, RecordFile, read
from .layout import POWER


def latest_power(history: Path) -> RecordFile | None:
    """The latest record that is whole and holds rates; None if there is none. What cannot be read is passed over."""
    folder = history / POWER
    found: list[RecordFile] = []
    for path in sorted(folder.glob("*.jsonl")) if folder.is_dir() else ():
        try:
            record = read(path)
        except RecordError:
            continue
        if record.header["of"] == "power" and record.complete and record.footer and record.footer.get("rates"):
            found.append(record)
    return max(found, key=lambda record: str(record.header["time"]), default=None)
