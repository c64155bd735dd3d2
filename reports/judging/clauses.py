"""Clauses over the nights: exact, no statistics. What was newly broken, what was newly kept."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..history import Note
from ..records import RecordFile
from .model import ClauseChange, ClauseHistory, ClauseState, Night

_BROKEN = ("failed", "hung", "crashed")
_DECIDED = (ClauseState.KEPT, ClauseState.LISTED, ClauseState.BROKEN, ClauseState.UNSTEADY)


class Place(NamedTuple):
    """What is kept or broken as one."""

    clause: str
    subject: str
    backend: str
    world: int

    @property
    def key(self) -> str:
        return "/".join(map(str, self))


@dataclass(frozen=True)
class Finding:
    """A clause on one night; the rest describes its first unlisted break."""

    state: ClauseState
    check: str = ""
    outcome: str = ""
    witness: str = ""


Table = dict[Place, Finding]


@dataclass(frozen=True)
class ClauseInfo:
    """What the records say of a clause itself."""

    title: str
    level: str
    area: str


def table(records: Sequence[RecordFile]) -> Table:
    """The findings of a night from the record of its first run and of its reruns.

    A rerun that did not come to its end may lack the very check that breaks a clause, so it takes nothing back.
    """
    if not records:
        return {}
    first = _of_record(records[0].rows)
    for rerun in (_of_record(record.rows) for record in records[1:] if record.complete):
        for place, again in rerun.items():
            before = first.get(place)
            if before is None or before.state is not ClauseState.BROKEN:
                first[place] = before or again
            elif again.state in (ClauseState.KEPT, ClauseState.LISTED):
                first[place] = Finding(ClauseState.UNSTEADY, before.check, before.outcome, before.witness)
    return first


def _of_record(rows: Sequence[Mapping[str, Any]]) -> Table:
    grouped: dict[Place, list[Mapping[str, Any]]] = {}
    for row in rows:
        grouped.setdefault(Place(row["clause"], row["subject"], row["backend"], row["world"]), []).append(row)
    return {place: _finding(group) for place, group in grouped.items()}


def _finding(rows: Sequence[Mapping[str, Any]]) -> Finding:
    outcomes = {row["outcome"] for row in rows}
    for row in rows:
        if row["outcome"] in _BROKEN and not row["deviation"]:
            return Finding(ClauseState.BROKEN, row["check"], row["outcome"], row["witness"])
    if "suite error" in outcomes:  # a check fell over by itself: whatever the others say, the clause is open
        return Finding(ClauseState.NOT_RUN)
    if outcomes & set(_BROKEN):
        return Finding(ClauseState.LISTED)
    if "passed" in outcomes:
        return Finding(ClauseState.KEPT)
    return Finding(ClauseState.UNSUPPORTED if "unsupported" in outcomes else ClauseState.NOT_RUN)


def info_of(records: Sequence[RecordFile]) -> dict[str, ClauseInfo]:
    """Title, level and area of each clause, as far as the records say."""
    found: dict[str, ClauseInfo] = {}
    for record in records:
        catalogue = record.header.get("catalogue", {})
        for row in record.rows:
            about = catalogue.get(row["clause"], {}) if isinstance(catalogue, dict) else {}
            about = about if isinstance(about, dict) else {}
            title, area = str(about.get("title", "")), str(about.get("area", ""))
            found.setdefault(row["clause"], ClauseInfo(title, row["level"], area))
    return found


def histories(
    nights: Sequence[Night], tables: Sequence[Table], about: Mapping[str, ClauseInfo], notes: Sequence[Note]
) -> tuple[list[ClauseHistory], list[ClauseChange]]:
    """Every clause of one machine over its nights, and where it changed."""
    places = sorted({place for table in tables for place in table})
    found, changes = [], []
    for place in places:
        findings = [table.get(place, Finding(ClauseState.ABSENT)) for table in tables]
        mine = [note for note in notes if note.machine == nights[0].machine and note.key == place.key]
        steps = _changes(place, nights, findings, mine)
        broken = bool(steps) and steps[-1].new is ClauseState.BROKEN
        what = about.get(place.clause, ClauseInfo("", "", ""))
        found.append(
            ClauseHistory(
                place.key, nights[0].machine, place.clause, what.title, what.level, what.area, place.subject,
                place.backend, place.world, tuple(night.name for night in nights),
                tuple(finding.state for finding in findings), steps[-1].note if broken else "",
            )
        )  # fmt: skip
        changes += steps
    return found, changes


def _changes(
    place: Place, nights: Sequence[Night], findings: Sequence[Finding], notes: Sequence[Note]
) -> list[ClauseChange]:
    decided = [at for at, finding in enumerate(findings) if finding.state in _DECIDED]
    pairs = zip([None, *decided], decided, strict=False)
    changed = [
        (before, at)
        for before, at in pairs
        if findings[at].state is not (findings[before].state if before is not None else ClauseState.KEPT)
        # the first night of a history breaks nothing by listing what was listed
        and (before is not None or findings[at].state in (ClauseState.BROKEN, ClauseState.UNSTEADY))
    ]
    changes = []
    for number, (before, at) in enumerate(changed):
        latest = number == len(changed) - 1
        # a note is about the break that stood when it was written
        until = nights[changed[number + 1][1]].time if not latest else None
        note = next((n for n in notes if nights[at].time <= n.time and (until is None or n.time < until)), None)
        broken = findings[at].state is ClauseState.BROKEN
        changes.append(
            ClauseChange(
                history=place.key,
                machine=nights[at].machine,
                clause=place.clause,
                subject=place.subject,
                backend=place.backend,
                world=place.world,
                night=nights[at].name,
                before_night=nights[before].name if before is not None else "",
                old=findings[before].state if before is not None else ClauseState.ABSENT,
                new=findings[at].state,
                check=findings[at].check,
                outcome=findings[at].outcome,
                witness=findings[at].witness,
                command=command(place, findings[at].check),
                old_commit=nights[before].commit if before is not None else "",
                new_commit=nights[at].commit,
                note=f"{note.text} ({note.who})" if note else "",
                alarms=broken and latest and note is None,
            )
        )
    return changes


def command(place: Place, check: str) -> str:
    """How to ask about a clause again."""
    words = ["python", "-m", "conformance", "run", "--subject", place.subject, "--backend", place.backend]
    words += ["--worlds", str(place.world), "--select", place.clause]
    return shlex.join(words + (["--check", check] if check else []))
