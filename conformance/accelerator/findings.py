"""What a part has found so far, in a file that is whole at every moment."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from reports.records.lines import loads

from ..bad_input import BadInput
from ..ranks import RunFailed

_MOST = 400  # characters of an error

HELD, BROKEN, NOT_RUN, FIGURE = "held", "broken", "not run", "figure"


@dataclass(frozen=True)
class Finding:
    """One sentence about an accelerator, and whether it is true there."""

    what: str
    state: str  # HELD, BROKEN, NOT_RUN or FIGURE
    why: str = ""  # of what is broken or was not run
    value: float | None = None  # of a figure
    theirs: float | None = None  # the same of torch's
    unit: str = ""


class FindingsFile:
    """The findings of one part. Opened again, it holds those that are there."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.all = _read(path)

    def __contains__(self, what: str) -> bool:
        return any(one.what == what for one in self.all)

    def add(self, *found: Finding) -> None:
        """Note them, on the disk as well."""
        new = {one.what for one in found}
        self.all = [one for one in self.all if one.what not in new] + list(found)
        part = self.path.with_name(f"{self.path.name}.part")
        try:
            part.write_text(json.dumps([asdict(one) for one in self.all], indent=1), encoding="utf-8")
            os.replace(part, self.path)
        except OSError as error:
            raise BadInput(f"cannot write {self.path}: {error.strerror}; give another --out") from error

    def once(self, what: str, find: Callable[[], Finding | list[Finding]]) -> None:
        """Find it out unless it is known. Whatever goes wrong meanwhile is its finding: the other ones are to come."""
        if what in self:
            return
        try:
            found = find()
        except Exception as error:
            found = Finding(what, BROKEN, in_one_line(error))
        several = found if isinstance(found, list) else [found]
        self.add(*(several if any(one.what == what for one in several) else [Finding(what, HELD), *several]))

    @property
    def broken(self) -> list[Finding]:
        return [one for one in self.all if one.state == BROKEN]


def in_one_line(error: Exception) -> str:
    """An error in one line; of a run of ranks, what became of each."""
    if isinstance(error, RunFailed):
        return error.run.summary().replace("\n", "; ")[:_MOST]
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or ['it said nothing'])[0]}"[:_MOST]


def held(what: str, is_so: bool, why: str) -> Finding:
    """``why`` counts only if it is not so."""
    return Finding(what, HELD if is_so else BROKEN, "" if is_so else why)


def figure(what: str, value: float, unit: str, theirs: float | None = None) -> Finding:
    return Finding(what, FIGURE, "", value, theirs, unit)


@contextmanager
def findings_at(path: Path) -> Iterator[FindingsFile]:
    """The findings of a part, in a folder that is made for it."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"cannot write into {path.parent}: {error.strerror}; give another --out") from error
    yield FindingsFile(path)


def _read(path: Path) -> list[Finding]:
    """What is there; somebody else's file is not written over."""
    if not path.exists():
        return []
    try:
        return [Finding(**one) for one in loads(path.read_bytes())]
    except (OSError, ValueError, TypeError) as error:
        raise BadInput(f"{path} is there and holds no findings ({error}); give another --out") from error
