"""JSON that others wrote, and files of one JSON object on each line that grow while a run goes on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

#: Names that are no UTF-8 hold halves of pairs in Python: in a file they become escapes of JSON, and are read back as
#: they were.
ESCAPED = "backslashreplace"


def loads(text: str | bytes) -> Any:
    """What a JSON text says; whatever is wrong with it, however deep it nests, is a ``ValueError``."""
    try:
        return json.loads(text, parse_constant=_refuse)
    except RecursionError:
        raise ValueError("it nests too deep") from None


def _refuse(word: str) -> NoReturn:
    raise ValueError(f"{word} is no number of JSON")


def whole_lines(path: Path) -> list[dict[str, Any]]:
    """The objects of a growing file, in order; a line that was cut off is passed over."""
    found = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else ():
        try:
            one = loads(line)
        except ValueError:  # its writer was killed
            continue
        if isinstance(one, dict):
            found.append(one)
    return found


def append(path: Path, values: Mapping[str, Any]) -> None:
    """Add a line. One that was cut off before it keeps to itself: it must not take the new one along."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab+") as file:
        torn = False
        if file.tell():
            file.seek(-1, 2)
            torn = file.read(1) != b"\n"
        text = json.dumps(values, ensure_ascii=False)
        file.write(f"{chr(10) if torn else ''}{text}\n".encode(errors=ESCAPED))
