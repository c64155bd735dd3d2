"""What is said of a night: as a record beside its measurements, and in words."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..findings import Urgency, few_nights, findings
from ..history.layout import VERDICT
from ..judging import Change, ClauseState, JudgedHistory, Machine, Series, State
from ..records import Writer, identity

__all__ = ["VERDICT", "told", "written"]


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


def told(judged: JudgedHistory, machine: Machine) -> str:
    """The verdict in words."""
    current = _current(judged, machine)
    count = {state: sum(one.state is state for one in current) for state in State}
    lines = [f"{machine.name}: {machine.health.value.upper()}", *(f"  {reason}" for reason in machine.reasons)]
    lines += [f"  reproduce: {command}" for command in _commands(judged, machine)]
    lines += [
        f"  new, not certain yet: {one.name} {change.effect:+.1%} since {change.since}"
        for one in current
        if (change := _standing(one)) and change.state is State.NEW
    ]
    counted = ", ".join(f"{count[state]} {state.value}" for state in State if count[state])
    missed = sum(night.status == "missed" for night in machine.nights)
    half = sum(night.status == "half" for night in machine.nights)
    lines.append(f"series: {counted or 'none'}")
    lines.append(f"nights: {len(machine.nights)}, of which {missed} missed and {half} half")
    lines += [few for few in [few_nights(judged, [machine])] if few]
    if judged.left_out:
        lines.append(f"left out of the history: {len(judged.left_out)}")
        lines += [f"  {one.path}: {one.kind}: {one.why}" for one in judged.left_out]
    return "\n".join([*lines, *(f"  {sentence}" for sentence in judged.parameters.sentences())])


def _commands(judged: JudgedHistory, machine: Machine) -> list[str]:
    """What measures or asks again for each alarm of the machine, the worst first."""
    mine = [one for one in findings(judged) if one.machine == machine.name and one.urgency is Urgency.ALARM]
    return list(dict.fromkeys(one.command for one in mine if one.command))


def _current(judged: JudgedHistory, machine: Machine) -> list[Series]:
    return [one for one in judged.series if one.machine == machine.name and one.current and one.points]


def _standing(series: Series) -> Change | None:
    """The change that the latest night's state is about."""
    return series.changes[-1] if series.changes and series.changes[-1].state is series.state else None
