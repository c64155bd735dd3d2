"""What the page's script loads when it needs it: small script files, because a page opened from disk cannot fetch."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import groupby
from math import isfinite
from typing import Any

from ..judging import ClauseState, JudgedHistory, Machine, Night, Series, State

STATE_LETTERS = {
    State.MISSING: "m", State.LEARNING: "l", State.STEADY: "s", State.NEW: "n", State.CONFIRMED: "c",
    State.ACKNOWLEDGED: "a", State.RESOLVED: "r", State.IMPROVED: "i",
}  # fmt: skip
CLAUSE_LETTERS = {
    ClauseState.KEPT: "k", ClauseState.LISTED: "l", ClauseState.BROKEN: "b", ClauseState.UNSTEADY: "u",
    ClauseState.UNSUPPORTED: "s", ClauseState.NOT_RUN: "n", ClauseState.ABSENT: "a",
}  # fmt: skip


def files(judged: JudgedHistory) -> Iterator[tuple[str, str]]:
    """Name and text of each file."""
    starts = {machine.name: {night.name: at for at, night in enumerate(machine.nights)} for machine in judged.machines}
    yield _file("nights", [_machine(machine) for machine in judged.machines])
    yield _file("values", [_values(one, starts[one.machine]) for one in judged.series])
    yield _file("clauses", _clauses(judged))
    for number, one in enumerate(judged.series):
        yield _file(f"series-{number}", _series(one, starts[one.machine]))


def _file(name: str, value: Any) -> tuple[str, str]:
    """ASCII only, so that no reader can be mistaken about the encoding."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False, default=str)
    return f"data/{name}.js", f"joinery({json.dumps(name)},{text});\n"


def _rounded(value: float | None) -> float | None:
    return float(f"{value:.5g}") if value is not None and isfinite(value) else None


def _machine(machine: Machine) -> dict[str, Any]:
    before: list[Night | None] = [None]
    nights = []
    for night in machine.nights:
        files = [path for part in night.parts for path in part.files]
        nights.append([night.name, night.status, night.commit, _changed(before[-1], night), files])
        if night.status != "missed":
            before.append(night)
    return {"name": machine.name, "nights": nights}


def _changed(before: Night | None, night: Night) -> list[list[str]]:
    """What versions came with this night: name, old, new."""
    if before is None or night.status == "missed":
        return []
    names = sorted(before.versions.keys() | night.versions.keys())
    changed = [[name, before.versions.get(name, ""), night.versions.get(name, "")] for name in names]
    return [each for each in changed if each[1] != each[2]]


def _first(one: Series, places: dict[str, int]) -> int:
    return places[one.points[0].night] if one.points else 0


def _values(one: Series, places: dict[str, int]) -> dict[str, Any]:
    """All that comparing two nights needs."""
    return {
        "first": _first(one, places), "states": "".join(STATE_LETTERS[point.state] for point in one.points),
        "values": [_rounded(point.value) for point in one.points],
        "noise": _rounded(next((point.noise for point in reversed(one.points) if point.noise is not None), None)),
    }  # fmt: skip


def _series(one: Series, places: dict[str, int]) -> dict[str, Any]:
    """All that a chart shows."""
    columns = {
        name: [_rounded(getattr(point, name)) for point in one.points]
        for name in ("value", "first", "low", "high", "level", "noise", "evidence")
    }
    changes = [
        {
            "worse": change.worse, "state": change.state.value, "since": places[change.since],
            "found": places[change.found], "until": places.get(change.until, -1),
            "effect": [_rounded(value) for value in (change.effect, change.low, change.high)],
            "commits": [change.old_commit, change.new_commit], "note": change.note, "alarms": change.alarms,
            "versions": [[name, *pair] for name, pair in change.versions.items()],
        }
        for change in one.changes
    ]  # fmt: skip
    why = {str(at): point.why for at, point in enumerate(one.points) if point.why}
    return {**_values(one, places), "columns": columns, "changes": changes, "why": why}


def _clauses(judged: JudgedHistory) -> list[list[Any]]:
    """Machine, key and the runs of equal states, as in ``k120b2k7``."""
    numbers = {machine.name: at for at, machine in enumerate(judged.machines)}
    return [[numbers[one.machine], one.key, runs(one.states), one.note] for one in judged.clauses]


def runs(states: tuple[ClauseState, ...]) -> str:
    return "".join(f"{CLAUSE_LETTERS[state]}{len(list(group))}" for state, group in groupby(states))
