"""Writes a record file line by line under a temporary name, and gives it its real name when it is complete."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

from .identity import now
from .schema import RecordError, check_footer, check_header, check_row

PART = ".part"


class Writer:
    """One record file in the making.

    Every line is flushed, so a kill loses at most the line in flight; what was written so far stays in
    ``<path>.part``. ``close`` writes the footer and renames. Leaving a ``with`` block by an exception closes the file
    as interrupted.
    """

    def __init__(self, path: Path, header: Mapping[str, Any]) -> None:
        check_header(header, str(path))
        self.path = path
        self.kind: str = header["of"]
        self.rows = 0
        self._part = path.with_name(path.name + PART)
        self._file: TextIO | None = self._part.open("w", encoding="utf-8")  # None once closed
        self._line({"line": "header", **header})

    def write(self, row: Mapping[str, Any]) -> None:
        """Add one row; it must have the fields of this kind of file."""
        check_row(self.kind, row, f"{self.path}: row {self.rows + 1}")
        self._line({"line": "row", **row})
        self.rows += 1

    def close(self, footer: Mapping[str, Any] | None = None, *, interrupted: bool = False) -> None:
        """Write the footer and give the file its name. Closing twice does nothing."""
        if self._file is None:
            return
        whole = {"rows": self.rows, "interrupted": interrupted, "finished": now(), **(footer or {})}
        check_footer(whole, str(self.path))
        self._line({"line": "footer", **whole})
        os.fsync(self._file.fileno())
        self._file.close()
        self._file = None
        self._part.replace(self.path)

    def abandon(self) -> None:
        """Throw away what was written; a file of that name from an earlier time stays."""
        if self._file is not None:
            self._file.close()
            self._file = None
            self._part.unlink(missing_ok=True)

    def _line(self, values: Mapping[str, Any]) -> None:
        if self._file is None:
            raise RecordError(f"{self.path}: written to after it was closed")
        self._file.write(json.dumps(values, ensure_ascii=False, allow_nan=False, default=str) + "\n")
        self._file.flush()

    def __enter__(self) -> Writer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(interrupted=kind is not None)
