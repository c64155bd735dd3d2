"""The record of a sweep: where it is written, and taking over from one that a killed run has left."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from reports.records import RecordError, RecordFile, Writer, identity, read
from reports.records.identity import now
from reports.records.writer import PART

from ..plan.cells import Group
from ..plan.planning import Plan
from .rows import FAILED, FINAL, HUNG, Row

HERE = Path(__file__).parents[1]


@dataclass
class Record:
    """An open record. ``taken`` are rows from an earlier run that need not be measured again."""

    writer: Writer
    taken: list[Row] = field(default_factory=list)
    troubles: tuple[str, ...] = ()  # files that could not be read

    @property
    def finished(self) -> set[str]:
        """The series that need not be measured again."""
        return {row["series"] for row in self.taken}


def header(question: Mapping[str, Any], warnings: Sequence[str], command: list[str]) -> dict[str, Any]:
    """The first line of a record: who, where, what was asked, and what speaks against the times."""
    whole = identity("perf", command, home=HERE)
    return {**whole, "asked": dict(question), "changes": changes(), "warnings": list(warnings)}


def changes() -> str:
    """Tells states of the source apart that stand at one commit; empty if nothing was changed since."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        command = ["git", "-C", str(HERE), "diff", "HEAD", "--", "../impl", "../conformance", "../perf"]
        done = subprocess.run(command, capture_output=True, timeout=20, check=True)
        return hashlib.sha256(done.stdout).hexdigest()[:12] if done.stdout else ""
    return ""


def begin(out: Path, first: Mapping[str, Any], planned: Plan, fresh: bool = False) -> Record:
    """Open a new record in ``out``. What an unfinished one to the same question holds is taken over, unless ``fresh``.

    The old file goes once its rows are in the new one.
    """
    troubles: list[str] = []
    found = [] if fresh else list(_unfinished(out, first, troubles))
    taken = _kept([record for record, _ in found], planned)
    writer = Writer(_free_name(out, planned.sweep.name), first)
    record = Record(writer, taken, tuple(troubles))
    for row in taken:
        writer.write(row)
    for old, lock in found:
        if taken:
            old.path.unlink(missing_ok=True)
        if lock:
            lock.close()
    return record


def _free_name(out: Path, sweep: str) -> Path:
    stamp = "".join(each for each in now()[:19] if each.isalnum())
    path, count = out / f"{sweep}-{stamp}.jsonl", 1
    while path.exists() or path.with_name(path.name + PART).exists():
        count += 1
        path = out / f"{sweep}-{stamp}-{count}.jsonl"
    return path


def _unfinished(
    out: Path, first: Mapping[str, Any], troubles: list[str]
) -> Iterator[tuple[RecordFile, TextIO | None]]:
    """Records to the same question, from the same source, that a run did not bring to its end and nobody writes.

    Whoever writes a record holds the lock of its file as long as it lives (``reports.records.Writer``).
    """
    for path in sorted([*out.glob(f"*.jsonl{PART}"), *out.glob("*.jsonl")]):
        if not _is_about(path, first):
            continue
        lock = _locked(path) if path.name.endswith(PART) else None
        if path.name.endswith(PART) and lock is None:  # somebody is at work on it
            continue
        try:
            record = read(path, partial=True)
        except RecordError as error:
            troubles.append(str(error))
            continue
        if not record.complete:
            yield record, lock
        elif lock:
            lock.close()


def _is_about(path: Path, first: Mapping[str, Any]) -> bool:
    """Whether a file's header asks what ``first`` asks; True for an unreadable one, so that it is named."""
    try:
        with path.open(encoding="utf-8") as file:
            header = json.loads(file.readline())
    except (OSError, ValueError):
        return True
    return isinstance(header, dict) and _about(header) == _about(first)


def _about(header: Mapping[str, Any]) -> list[Any]:
    """What must be equal for two runs to continue each other: what is measured, of which code, and where."""
    machine = header.get("machine")
    where = [machine.get(name) for name in ("processor", "cores", "gpus")] if isinstance(machine, dict) else None
    return [where, *(header.get(name) for name in ("of", "asked", "commit", "changes", "environment"))]


def _locked(path: Path) -> TextIO | None:
    """A handle that holds the file's lock until it is closed or this process ends; None if somebody else holds it."""
    handle = path.open("r", encoding="utf-8")
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        handle.close()
        return None
    return handle


def _kept(found: Sequence[RecordFile], planned: Plan) -> list[Row]:
    """The rows that stand, of each group those of the record that has most of it."""
    tables = [{(row["group"], row["series"]): row for row in record.rows} for record in found]
    kept: list[Row] = []
    for group in planned.groups:
        most: list[Row] = []
        for table in tables:
            most = max(most, _kept_of(group, table), key=len)
        kept += most
    return kept


def _kept_of(group: Group, table: Mapping[tuple[str, str], Row]) -> list[Row]:
    """A whole group's rows, because cells compare only within one measurement; else what will not come out better."""
    rows = [row for cell in group if (row := table.get((group.name, cell.series))) and row["status"] in FINAL]
    whole = len(rows) == len(group.cells)
    return [row for row in rows if whole or row["status"] in (FAILED, HUNG)]


def question(
    planned: Plan, subjects: Mapping[str, str], versions: Mapping[str, str], world: int, backend: str
) -> dict[str, Any]:
    """What a run is about. Two runs to one question, at one state of the source and on machines alike, can continue
    each other."""
    return {
        "sweep": planned.sweep.name, "digest": planned.sweep.digest, "world": world, "backend": backend,
        "subjects": dict(subjects), "versions": dict(versions),
        "cells": [cell.series for group in planned.groups for cell in group],
    }  # fmt: skip
