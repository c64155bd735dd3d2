"""Reads record files and refuses what is not whole, saying what is wrong with it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .lines import loads
from .schema import RecordError, check_footer, check_header, check_row

Line = tuple[str, dict[str, Any]]  # what a line is (header, row, footer) and what it says

_NO_FOOTER = "has no footer: its run was killed or is still going on; read it with partial=True to see what it did"


@dataclass(frozen=True)
class RecordFile:
    """What a record file holds."""

    path: Path
    header: dict[str, Any]
    rows: list[dict[str, Any]]
    footer: dict[str, Any] | None  # None only if read with ``partial=True``: the run was killed, or is still going on

    @property
    def complete(self) -> bool:
        """Whether the run came to its end: there is a footer, and it does not say interrupted."""
        return self.footer is not None and not self.footer["interrupted"]


def read(path: Path | str, *, partial: bool = False) -> RecordFile:
    """Read a record file; ``RecordError`` if it is not whole.

    ``partial=True`` accepts a file without a footer (a killed run, or one still being written) and leaves out a last
    line that was cut off.
    """
    path = Path(path)
    lines = _lines(path, partial)
    if not lines or lines[0][0] != "header":
        raise RecordError(f"{path}: the first line is no header, so this is no record file")
    (_, header), *rest = lines
    check_header(header, str(path))
    footer = _footer(rest, path, partial)
    rows = [_row(kind, row, header["of"], f"{path}: line {number}") for number, (kind, row) in enumerate(rest, 2)]
    if footer is not None and footer["rows"] != len(rows):
        counted = f"the footer counts {footer['rows']} rows, the file holds {len(rows)}"
        raise RecordError(f"{path}: {counted}: the file was altered")
    return RecordFile(path, header, rows, footer)


def _lines(path: Path, partial: bool) -> list[Line]:
    try:
        texts = path.read_text(encoding="utf-8").split("\n")  # not splitlines: a text may hold other line separators
    except (OSError, UnicodeDecodeError) as error:
        raise RecordError(f"{path}: cannot be read: {error}") from error
    if texts[-1] == "":
        texts.pop()
    lines: list[Line] = []
    for number, text in enumerate(texts, 1):
        try:
            line = loads(text)
        except ValueError as error:
            if number == len(texts) and lines:  # cut off in the middle: the writer was killed
                if partial:
                    break
                raise RecordError(f"{path}: {_NO_FOOTER}") from error
            raise RecordError(f"{path}: line {number} is no JSON: {error}") from error
        if not isinstance(line, dict):
            raise RecordError(f"{path}: line {number} is no JSON object")
        lines.append((str(line.pop("line", "")), line))
    return lines


def _footer(rest: list[Line], path: Path, partial: bool) -> dict[str, Any] | None:
    """Take the footer off the end of the lines."""
    if not rest or rest[-1][0] != "footer":
        if partial:
            return None
        raise RecordError(f"{path}: {_NO_FOOTER}")
    _, footer = rest.pop()
    check_footer(footer, str(path))
    return footer


def _row(kind: str, row: dict[str, Any], of: str, where: str) -> dict[str, Any]:
    if kind != "row":
        raise RecordError(f"{where} is neither a row nor the footer at the end")
    check_row(of, row, where)
    return row
