"""Every view of a judged history as a plain table: the same columns for CSV and for JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from ..findings import findings
from ..judging import Change, JudgedHistory, Point, Series
from ..wording import commits

Row = dict[str, Any]


def _findings(judged: JudgedHistory) -> Iterator[Row]:
    for one in findings(judged):
        change, origin = one.change, one.change or one.clause
        yield {
            "urgency": one.urgency.value, "what": one.what, "machine": one.machine, "key": one.key, "name": one.name,
            "since": one.since, "effect": change.effect if change else None, "low": change.low if change else None,
            "high": change.high if change else None, "commits": commits(origin) if origin
            else "", "why": one.why, "command": one.command,
        }  # fmt: skip


def _series(judged: JudgedHistory) -> Iterator[Row]:
    for one in judged.series:
        point = one.points[-1] if one.points else None
        yield {
            "key": one.key, "name": one.name, "machine": one.machine, "subject": one.subject,
            "reference": one.reference, "basis": one.basis.value, "unit": one.unit, "axes": one.axes,
            "state": one.state.value, "current": one.current, "few_nights": one.few_nights, "same": one.same,
            "wrong": one.wrong, "lost": one.lost,
            "night": point.night if point else "", "value": point.value if point else None,
            "level": point.level if point else None, "noise": point.noise if point else None,
            "evidence": point.evidence if point else None, "detectable": one.detectable,
            "workload_hash": one.workload_hash, "hardware": one.hardware, "command": one.command,
        }  # fmt: skip


def _points(judged: JudgedHistory) -> Iterator[Row]:
    for one in judged.series:
        for point in one.points:
            yield _point(one, point)


def _point(one: Series, point: Point) -> Row:
    return {
        "key": one.key, "name": one.name, "machine": one.machine, "night": point.night, "state": point.state.value,
        "value": point.value, "first": point.first, "low": point.low, "high": point.high, "blocks": point.blocks,
        "level": point.level, "noise": point.noise, "evidence": point.evidence, "rank_p": point.rank_p,
        "why": point.why,
    }  # fmt: skip


def _changes(judged: JudgedHistory) -> Iterator[Row]:
    by_key = {one.key: one for one in judged.series}
    for change in judged.changes:
        yield _change(by_key[change.series], change)


def _change(one: Series, change: Change) -> Row:
    return {
        "key": one.key, "name": one.name, "machine": one.machine, "worse": change.worse, "state": change.state.value,
        "effect": change.effect, "low": change.low, "high": change.high, "before": change.before,
        "since": change.since, "found": change.found, "until": change.until, "old_level": change.old_level,
        "new_level": change.new_level, "old_commit": change.old_commit, "new_commit": change.new_commit,
        "versions": {name: list(pair) for name, pair in change.versions.items()}, "note": change.note,
        "alarms": change.alarms, "same": one.same,
    }  # fmt: skip


def _clauses(judged: JudgedHistory) -> Iterator[Row]:
    silent = {machine.name: machine.silent for machine in judged.machines}
    for one in judged.clauses:
        yield {
            "key": one.key, "machine": one.machine, "clause": one.clause, "title": one.title, "level": one.level,
            "area": one.area, "subject": one.subject, "backend": one.backend, "world": one.world,
            "night": one.nights[-1 - silent[one.machine]], "state": one.states[-1 - silent[one.machine]].value,
            "note": one.note,
        }  # fmt: skip


def _clause_changes(judged: JudgedHistory) -> Iterator[Row]:
    for one in judged.clause_changes:
        yield {
            "key": one.history, "machine": one.machine, "night": one.night, "before_night": one.before_night,
            "old": one.old.value, "new": one.new.value, "check": one.check, "outcome": one.outcome,
            "witness": one.witness, "old_commit": one.old_commit, "new_commit": one.new_commit, "note": one.note,
            "alarms": one.alarms, "command": one.command,
        }  # fmt: skip


def _nights(judged: JudgedHistory) -> Iterator[Row]:
    for machine in judged.machines:
        for night in machine.nights:
            yield {
                "machine": night.machine, "night": night.name, "time": night.time, "status": night.status,
                "commit": night.commit, "versions": night.versions,
                "parts": {part.name: {"status": part.status, "why": part.why} for part in night.parts},
                "files": [path for part in night.parts for path in part.files],
            }  # fmt: skip


def _machines(judged: JudgedHistory) -> Iterator[Row]:
    for one in judged.machines:
        yield {
            "machine": one.name, "health": one.health.value, "reasons": list(one.reasons), "silent": one.silent,
            "nights": len(one.nights), "facts": one.facts,
        }  # fmt: skip


def _left_out(judged: JudgedHistory) -> Iterator[Row]:
    for one in judged.left_out:
        yield {"path": one.path, "kind": one.kind, "why": one.why}


VIEWS: dict[str, Callable[[JudgedHistory], Iterator[Row]]] = {
    "findings": _findings, "series": _series, "points": _points, "changes": _changes, "clauses": _clauses,
    "clause-changes": _clause_changes, "nights": _nights, "machines": _machines, "left-out": _left_out,
}  # fmt: skip


def plain(value: Any) -> str:
    """A value as one cell of a table."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:.7g}"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
