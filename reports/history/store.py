"""Adds to a history folder: a night is put together under a temporary name and appears whole, or not at all."""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ..records.disk import sync_folder
from ..records.lines import ESCAPED
from .layout import DRAFT, MANIFEST, NOTES, POWER, night_name, slug


class HistoryError(ValueError):
    """A history folder cannot be used; the text says why and what to do."""


def opened(folder: Path) -> Path:
    """The history folder, made if there is none yet, and seen to be writable."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f"{DRAFT}{uuid.uuid4().hex}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        why = error.strerror or str(error)
        raise HistoryError(f"cannot write into {folder}: {why}; choose another folder") from error
    return folder.resolve()


def add_night(
    history: Path, machine: str, began: datetime, manifest: Mapping[str, Any], files: Mapping[str, Path]
) -> Path:
    """Put a night into the history: its manifest and copies of the files, by the name that each gets there."""
    home = history / named(machine)
    home.mkdir(parents=True, exist_ok=True)
    word = uuid.uuid4().hex
    draft = home / f"{DRAFT}{word}"
    draft.mkdir()
    try:
        for name, source in files.items():
            _copied(source, draft / name)
        _written(draft / MANIFEST, manifest)
        sync_folder(draft)
        place = home / night_name(began, f"{began.microsecond:05x}{word[:4]}")
        draft.rename(place)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise
    sync_folder(home)
    return place


def add_file(night: Path, name: str, source: Path) -> None:
    """Add one more file to a night that is there already; it appears whole, or not at all."""
    draft = night / f"{DRAFT}{uuid.uuid4().hex}"
    _copied(source, draft)
    draft.rename(night / name)
    sync_folder(night)


def add_note(history: Path, note: Mapping[str, Any]) -> Path:
    """Write an acknowledgement; the file's name is its own, so that histories can be merged."""
    folder = history / NOTES
    folder.mkdir(parents=True, exist_ok=True)
    word = uuid.uuid4().hex
    draft = folder / f"{DRAFT}{word}"
    _written(draft, note)
    place = folder / f"{night_name(datetime.now(UTC), word[:8])}.json"
    draft.rename(place)
    sync_folder(folder)
    return place


def named(machine: str) -> str:
    """A machine's name as a folder's name."""
    name = slug(machine)
    if not name or name in (NOTES, POWER):
        raise HistoryError(f"{machine!r} cannot name a machine: use letters and digits, e.g. --machine builder-1")
    return name


def _copied(source: Path, place: Path) -> None:
    shutil.copyfile(source, place)
    with place.open("rb+") as file:
        os.fsync(file.fileno())


def _written(place: Path, values: Mapping[str, Any]) -> None:
    with place.open("w", encoding="utf-8", errors=ESCAPED) as file:
        json.dump(values, file, ensure_ascii=False, indent=1, default=str)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
