"""Writes a record file line by line under a temporary name, and gives it its real name when it is complete."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

from .disk import sync_folder
from .identity import now
from .lines import ESCAPED
from .reader import read
from .schema import RecordError, check_footer, check_header, check_row

try:
    import fcntl
except ImportError:  # a platform without file locks: two writers of one path are then not told apart
    fcntl = None  # type: ignore[assignment]

PART = ".part"


class Writer:
    """One record file in the making.

    Every line is flushed, so a kill loses at most the line in flight; what was written so far stays in
    ``<path>.part``. ``close`` writes the footer, sees that everything is on the disk, and renames. Leaving a ``with``
    block by an exception closes the file as interrupted.

    A record that is closed as interrupted does not take the place of a whole one: it stays ``.part``.

    Two writers of one path at once lose nothing: each has a temporary file of its own, and the one that ends later
    takes the next free name beside the other's (``run-2.jsonl``). ``path`` says which, after ``close``.
    """

    def __init__(self, path: Path, header: Mapping[str, Any]) -> None:
        check_header(header, str(path))
        self.path = path
        self.kind: str = header["of"]
        self.rows = 0
        self._before = _same(path)  # the file of that name from an earlier time; only that one may be replaced
        self._part, file = _temporary(path)
        self._file: TextIO | None = file  # None once closed
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
        if interrupted and _is_whole(self.path):
            self.path = self._part
        else:
            self.path = _put(self._part, self.path, self._before)
        self._file.close()  # only now: the lock goes with it
        self._file = None

    def abandon(self) -> None:
        """Throw away what was written; a file of that name from an earlier time stays."""
        if self._file is not None:
            self._part.unlink(missing_ok=True)
            self._file.close()
            self._file = None

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


def _is_whole(path: Path) -> bool:
    try:
        return read(path).complete
    except RecordError:
        return False


def _temporary(path: Path) -> tuple[Path, TextIO]:
    """A temporary file beside ``path`` that no other living writer has."""
    part = path.with_name(path.name + PART)
    # not "w": that would empty the file of a writer that is still at work
    file = part.open("a", encoding="utf-8", errors=ESCAPED)
    # locked, but no longer under this name: its writer has just finished it, so it is a record now
    if _locked(file) and _same_file(part, file):
        file.truncate(0)  # new, or left behind by a writer that was killed
        return part, file
    file.close()
    own = path.with_name(f"{path.name}.{uuid.uuid4().hex[:8]}{PART}")
    file = own.open("x", encoding="utf-8", errors=ESCAPED)
    _locked(file)
    return own, file


def _locked(file: TextIO) -> bool:
    """Take the file's lock, which ends with the process; False if another writer has it."""
    if fcntl is None:
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        return True
    return True


def _same_file(path: Path, file: TextIO) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except OSError:
        return False


def _same(path: Path) -> tuple[int, int] | None:
    """What tells a file from a later one of its name; None if there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


def _put(part: Path, path: Path, before: tuple[int, int] | None) -> Path:
    """Give the file its name, or the next free one if somebody else has finished a file of that name meanwhile."""
    number = 1
    while _same(path) != before:
        number += 1
        path = path.with_name(f"{path.stem.removesuffix(f'-{number - 1}')}-{number}{path.suffix}")
        before = None
    part.replace(path)
    sync_folder(path.parent)
    return path
