"""Going on with a run that was interrupted: what it had finished is taken over from its record and not run again.

A killed run leaves ``<record>.part``, an interrupted one a record whose footer says so; a run that goes on with them
and is killed again leaves one more part. So whatever parts there are count together, and they go only when the record
that took them over is whole. A part that answers another question (see ``question``) is never lost.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.util
import itertools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from reports.records import RecordError, RecordFile, read

from ..bad_input import BadInput
from ..results import Case, Outcome
from .verdict import Verdict

REQUIRED, POSSIBLE = "required", "possible"  # --resume: there must be something to go on with, or there may be
_HERE = Path(__file__).parents[1]
_NOT_THE_SUITE = ("tests", "pages", "repros", "defects", "power", "board")  # a change there cannot change a result


@dataclass(frozen=True)
class Ended:
    """How a case ended in an earlier run."""

    verdict: Verdict
    seconds: float
    notes: tuple[str, ...]
    clauses: frozenset[str]  # that were recorded; a kill may fall between the rows of one case


@dataclass(frozen=True)
class Earlier:
    """What earlier, unfinished runs of the same question had finished."""

    ends: Mapping[Case, Ended] = field(default_factory=dict)
    files: tuple[Path, ...] = ()  # where that stands
    times: tuple[str, ...] = ()  # when those runs began

    def get(self, case: Case, clauses: Sequence[str]) -> Ended | None:
        """How the case ended, if the record says so for all of these clauses."""
        ended = self.ends.get(case)
        return ended if ended is not None and ended.clauses >= set(clauses) else None

    def header(self) -> dict[str, Any]:
        """What the header of the record says of it."""
        return {"resumed": {"cases": len(self.ends), "begun": list(self.times)}} if self.files else {}

    def drop(self) -> None:
        """Remove the parts: all that they said is in the record now."""
        for file in self.files:
            file.unlink(missing_ok=True)


# --- the question -----------------------------------------------------------------------------------------------------


def question(header: Mapping[str, Any]) -> dict[str, Any]:
    """What must be equal for two runs to answer the same question: its words, and all that may change an answer."""
    machine = header["machine"]
    return {
        "other subjects": header.get("subjects"),
        "another question": header.get("asked"),
        "other checks": header.get("checks", ""),
        "another commit": header["commit"],
        "other sources": header.get("source"),
        "other versions": header["versions"],
        "another machine": [machine.get("processor"), machine.get("cores")],
        "another environment": header["environment"],
    }


def source(subjects: Mapping[str, str], checks: str) -> str:
    """A fingerprint of the suite, the checks and the subjects' own packages, committed or not."""
    folders = [_HERE, *([Path(checks)] if checks else [])]
    for spec in subjects.values():
        folders += _home("impl" if spec == "impl" else spec.partition(":")[0].partition(".")[0])
    digest = hashlib.sha256()
    for file in itertools.chain.from_iterable(map(_sources, folders)):
        digest.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def _home(package: str) -> list[Path]:
    """The folder or file of a package; nothing for torch, whose version says enough."""
    found = importlib.util.find_spec(package) if package not in ("torch", "conformance") else None
    if found is None or not found.origin:
        return []
    return [Path(found.origin).parent if found.submodule_search_locations else Path(found.origin)]


def _sources(place: Path) -> Iterator[Path]:
    if place.is_file():
        yield place
        return
    for file in sorted([*place.rglob("*.py"), *place.rglob("*.toml")]):
        if place != _HERE or file.relative_to(place).parts[0] not in _NOT_THE_SUITE:
            yield file


# --- what is left of earlier runs -------------------------------------------------------------------------------------


def find(record: Path, header: Mapping[str, Any], how: str, tell: Callable[[str], None]) -> Earlier:
    """What can be taken over. If there is nothing: refused where it is REQUIRED, else ``tell`` why and start anew."""
    troubles: list[str] = []
    found: list[RecordFile] = []
    for file in _candidates(record):
        try:
            read_back = read(file, partial=True)
        except RecordError as error:
            troubles.append(str(error))
            continue
        trouble = _unfit(read_back, header)
        if read_back.complete and how == POSSIBLE:
            continue  # nothing is left to do of it
        if trouble:
            troubles.append(f"{file}: {trouble}")
        else:
            found.append(read_back)
    if found:
        return _union(found, [_set_aside(file.path, record) for file in found])
    if how == REQUIRED:
        why = "; ".join(troubles) or f"{record.parent} holds no unfinished record"
        raise BadInput(f"nothing to go on with: {why}; leave --resume out to start anew")
    for trouble in troubles:
        tell(f"started anew: {trouble}")
    return Earlier()


def _candidates(record: Path) -> list[Path]:
    parts = sorted(record.parent.glob(f"{record.name}*.part"), key=lambda file: file.stat().st_mtime)
    return [*([record] if record.exists() else []), *parts]


def _unfit(file: RecordFile, header: Mapping[str, Any]) -> str:
    """Why a record cannot be gone on with; empty if it can."""
    if file.complete:
        return "this record is finished"
    then, now = question(file.header), question(header)
    for what, value in now.items():
        if then[what] != value:
            return f"it is of {what}: {_brief(then[what])} then, {_brief(value)} now"
    return ""


def _brief(value: object, most: int = 120) -> str:
    text = str(value)
    return text if len(text) <= most else f"{text[:most]}…"


def _union(files: Sequence[RecordFile], places: Sequence[Path]) -> Earlier:
    ends: dict[Case, Ended] = {}
    for file in files:  # from old to new; a case that an interrupted run had begun again counts as it ended last
        for case, rows in itertools.groupby(file.rows, key=_case):
            ends[case] = _ended(list(rows))
    return Earlier(ends, tuple(places), tuple(file.header["time"] for file in files))


def _case(row: Mapping[str, Any]) -> Case:
    return Case(row["check"], row["scenario"], row["subject"], row["backend"], row["world"])


def _ended(rows: Sequence[Mapping[str, Any]]) -> Ended:
    row = rows[0]
    verdict = Verdict(Outcome(row["outcome"]), row["witness"], row["detail"], row["schedule"])
    return Ended(verdict, row["seconds"], tuple(row["notes"]), frozenset(each["clause"] for each in rows))


# --- the folder of the records ----------------------------------------------------------------------------------------


def set_aside(record: Path) -> None:
    """Rename what a killed run left, so that the next run does not write over it."""
    part = _part(record)
    if part.exists():
        _set_aside(part, record)


def _set_aside(file: Path, record: Path) -> Path:
    """A name under which no run writes; the file has it from now on."""
    if file not in (record, _part(record)):
        return file
    names = (record.with_name(f"{record.name}.{number}.part") for number in itertools.count(1))
    return file.rename(next(name for name in names if not name.exists()))


def _part(record: Path) -> Path:
    return record.with_name(record.name + ".part")


@contextlib.contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Inside the block no other run writes into the folder. A killed run's claim ends with it."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise BadInput(f"another run is writing into {folder}; wait for it, or choose another --out") from error
        yield
    finally:
        os.close(handle)
