"""Reads a history folder: the nights in it, the notes, and what was left out and why."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from ..records import RecordError, RecordFile, read
from ..records.lines import loads
from .layout import BEFORE, DRAFT, MANIFEST, NOTES, PARTS, POWER, VERDICT, is_night, night_time, part_of

KINDS = ("damaged", "duplicate", "future", "foreign")

_CLOCKS_MAY_DIFFER = timedelta(hours=1)


@dataclass(frozen=True)
class LeftOut:
    """A file or folder of the history that was not used."""

    path: str  # relative to the history
    kind: str  # one of KINDS
    why: str


@dataclass(frozen=True)
class StoredNight:
    """One night as it lies in the history. The records are read when they are asked for, and not kept."""

    folder: Path
    machine: str
    name: str
    time: str
    manifest: dict[str, Any]  # empty if there is none: somebody put the records there by hand
    files: dict[str, tuple[Path, ...]]  # part, or BEFORE -> its record files, the first attempt first

    def records(self, part: str, left_out: list[LeftOut], root: Path) -> tuple[RecordFile, ...]:
        """The readable records of a part. A half record (its run was killed) is used as far as it goes."""
        found = []
        for path in self.files.get(part, ()):
            try:
                record = read(path, partial=True)
                if record.header["of"] != ("perf" if part == BEFORE else part):
                    raise RecordError(f"{path}: a record of {record.header['of']!r} under the name of {part}")
                found.append(record)
            except RecordError as error:
                why = str(error).removeprefix(f"{path}: ")
                left_out.append(LeftOut(str(path.relative_to(root)), "damaged", why))
        return tuple(found)


@dataclass(frozen=True)
class Note:
    """Somebody has seen a regression or a broken clause, and says so."""

    machine: str
    key: str  # of a series or of a clause
    since: str  # the night from which on the change is known; what changes later is news again
    time: str
    who: str
    text: str


@dataclass(frozen=True)
class Found:
    """Everything in a history folder."""

    root: Path
    nights: tuple[StoredNight, ...]  # by machine, then in order of time
    notes: tuple[Note, ...]  # in order of time
    left_out: list[LeftOut] = field(default_factory=list)


def scan(history: Path, now: datetime) -> Found:
    """Look through a history. ``now``: what claims to be later than that is left out."""
    left_out: list[LeftOut] = []
    nights: list[StoredNight] = []
    seen: dict[str, str] = {}

    def leave_out(path: Path, kind: str, why: str) -> None:
        left_out.append(LeftOut(str(path.relative_to(history)), kind, why))

    for home in _listed(history):
        if home.name in (NOTES, POWER) or home.name.startswith("."):
            continue
        if not home.is_dir():
            leave_out(home, "foreign", "not a folder of a machine")
            continue
        for folder in _listed(home):
            if folder.name.startswith(DRAFT):
                leave_out(folder, "damaged", "left by a run that was killed while it stored its night")
            elif not folder.is_dir() or not is_night(folder.name):
                leave_out(folder, "foreign", "not the folder of a night")
            elif (night := _night(folder, leave_out)) is not None and _fits(night, now, seen, history, leave_out):
                nights.append(night)
    return Found(history, tuple(nights), tuple(_notes(history / NOTES, now, leave_out)), left_out)


def _listed(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []


def _night(folder: Path, leave_out: Any) -> StoredNight | None:
    """The night in a folder; None if nothing in it can be used."""
    files: dict[str, list[tuple[int, Path]]] = {part: [] for part in (*PARTS, BEFORE)}
    for path in _listed(folder):
        place = part_of(path.name)
        if place is not None and path.is_file():
            files[place[0]].append((place[1], path))
        elif path.name.startswith(DRAFT):
            leave_out(path, "damaged", "left by a run that was killed while it stored a file")
        elif path.name not in (MANIFEST, VERDICT):
            leave_out(path, "foreign", "not a file of a night")
    manifest = _manifest(folder / MANIFEST, leave_out)
    if not any(files.values()) and not manifest:
        leave_out(folder, "damaged", "neither a record nor a manifest in it")
        return None
    try:
        time = night_time(folder.name)
    except ValueError:
        leave_out(folder, "foreign", "its name is no moment in time")
        return None
    whole = {part: tuple(path for _, path in sorted(found)) for part, found in files.items()}
    return StoredNight(folder, folder.parent.name, folder.name, time, manifest, whole)


def _manifest(path: Path, leave_out: Any) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        values = loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        leave_out(path, "damaged", f"no JSON: {error}")
        return {}
    if not isinstance(values, dict) or not isinstance(values.get("parts"), dict):
        leave_out(path, "damaged", "not a manifest: it names no parts")
        return {}
    return values


def _fits(night: StoredNight, now: datetime, seen: dict[str, str], root: Path, leave_out: Any) -> bool:
    """Whether a night belongs into the history: not from the future, and not there already."""
    if datetime.fromisoformat(night.time) > now + _CLOCKS_MAY_DIFFER:
        leave_out(
            night.folder, "future", f"dated {night.time}, which is after now ({now.isoformat(timespec='seconds')})"
        )
        return False
    digest = hashlib.sha256()
    for path in (path for part in PARTS for path in night.files[part]):
        try:
            with path.open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
        except OSError as error:
            leave_out(path, "damaged", f"cannot be read: {error.strerror or error}")
            return False
    if not any(night.files.values()):
        return True
    twin = seen.setdefault(digest.hexdigest(), str(night.folder.relative_to(root)))
    if twin != str(night.folder.relative_to(root)):
        leave_out(night.folder, "duplicate", f"the same records as {twin}")
        return False
    return True


def _notes(folder: Path, now: datetime, leave_out: Any) -> Iterator[Note]:
    found = []
    for path in _listed(folder):
        if path.name.startswith(DRAFT):
            continue
        try:
            values = loads(path.read_text(encoding="utf-8"))
            note = Note(*(str(values[name]) for name in ("machine", "key", "since", "time", "who", "text")))
            moment = datetime.fromisoformat(note.time)
            late = moment > now + _CLOCKS_MAY_DIFFER
        except (OSError, ValueError, KeyError, TypeError) as error:
            leave_out(path, "damaged", f"not a note: {type(error).__name__}: {error}")
            continue
        if late:
            leave_out(path, "future", f"dated {note.time}")
        else:
            found.append(note)
    yield from sorted(found, key=lambda note: (note.time, note.key))
