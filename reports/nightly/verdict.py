"""What is said of a night: as a record beside its measurements, and in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..findings import Urgency, few_nights, findings
from ..history.layout import VERDICT
from ..judging import Change, ClauseState, JudgedHistory, Machine, Series, State
from ..records import Writer, identity
from ..wording import plural

__all__ = ["VERDICT", "explained", "summary", "written"]

_SHOWN = 3  # lines of each kind


def written(judged: JudgedHistory, machine: Machine, path: Path) -> Path:
    """Write the verdict on a machine's latest night."""
    header = {**identity("verdict"), "parameters": asdict(judged.parameters), "judged": judged.judged}
    with Writer(path, header) as writer:
        for row in _rows(judged, machine):
            writer.write(row)
        writer.close({
            "health": machine.health.value, "exit_status": machine.health.exit_status, "reasons": list(machine.reasons),
        })  # fmt: skip
    return writer.path


def _rows(judged: JudgedHistory, machine: Machine) -> Iterator[dict[str, Any]]:
    for one in _current(judged, machine):
        point, change = one.points[-1], _standing(one)
        yield {
            "kind": "series", "key": one.key, "name": one.name, "state": one.state.value, "value": point.value,
            "level": point.level, "evidence": point.evidence, "since": change.since if change else "",
            "effect": change.effect if change else None, "alarms": bool(change and change.alarms),
        }  # fmt: skip
    changes = {change.history: change for change in judged.clause_changes if change.machine == machine.name}
    for clause in judged.clauses:
        if clause.machine == machine.name and clause.states[-1] is not ClauseState.ABSENT:
            latest = changes.get(clause.key)
            yield {
                "kind": "clause", "key": clause.key, "name": clause.title, "state": clause.states[-1].value,
                "value": None, "level": None, "evidence": 0.0, "since": latest.night if latest else "",
                "effect": None, "alarms": bool(latest and latest.alarms),
            }  # fmt: skip


def summary(judged: JudgedHistory, machine: Machine) -> str:
    """Tonight in a few lines: healthy or not, what regressed since when, how to reproduce it; the page has the rest."""
    counts = ", ".join(f"{count} {state}" for state, count in _counts(judged, machine).items()) or "none judged"
    lines = [f"{machine.name}: {machine.health.value.upper()} tonight (series: {counts})"]
    lines += _first(machine.reasons)
    lines += _first([f"reproduce: {command}" for command in _commands(judged, machine)])
    lines += _first([
        f"new, not certain yet: {one.name} {change.effect:+.1%} since {change.since}"
        for one in _current(judged, machine)
        if (change := _standing(one)) and change.state is State.NEW
    ])  # fmt: skip
    if judged.left_out:
        lines.append(f"  {plural(len(judged.left_out), 'file')} of the history could not be used")
    return "\n".join(lines)


def explained(judged: JudgedHistory, machine: Machine) -> str:
    """What the verdict rests on: the nights, what was left out, and how it was judged."""
    missed = sum(night.status == "missed" for night in machine.nights)
    half = sum(night.status == "half" for night in machine.nights)
    lines = [f"nights: {len(machine.nights)}, of which {missed} missed and {half} half"]
    lines += [few for few in [few_nights(judged, [machine])] if few]
    lines += [f"left out: {one.path}: {one.kind}: {one.why}" for one in judged.left_out]
    return "\n".join(f"  {line}" for line in (*lines, *judged.parameters.sentences()))


def _first(lines: Sequence[str]) -> list[str]:
    """Indented, and no more of them than are read."""
    more = len(lines) - _SHOWN
    return [f"  {line}" for line in lines[:_SHOWN]] + ([f"  … and {more} more on the page"] if more > 0 else [])


def _counts(judged: JudgedHistory, machine: Machine) -> dict[str, int]:
    """How many series stand where."""
    states = [one.state for one in _current(judged, machine)]
    return {state.value: states.count(state) for state in State if state in states}


def _commands(judged: JudgedHistory, machine: Machine) -> list[str]:
    """What measures or asks again for each alarm of the machine, the worst first."""
    mine = [one for one in findings(judged) if one.machine == machine.name and one.urgency is Urgency.ALARM]
    return list(dict.fromkeys(one.command for one in mine if one.command))


def _current(judged: JudgedHistory, machine: Machine) -> list[Series]:
    return [one for one in judged.series if one.machine == machine.name and one.current and one.points]


def _standing(series: Series) -> Change | None:
    """The change that the latest night's state is about."""
    return series.changes[-1] if series.changes and series.changes[-1].state is series.state else None
