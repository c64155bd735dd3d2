"""The latest night as OpenMetrics text, for Prometheus (a textfile collector, say) and Grafana."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from math import isfinite

from ..judging import Basis, ClauseState, Health, JudgedHistory, Machine, Series, State

Labels = dict[str, str]
Sample = tuple[Labels, float]


def as_openmetrics(judged: JudgedHistory) -> str:
    lines: list[str] = []
    for name, text, samples in _families(judged):
        lines += [f"# TYPE {name} gauge", f"# HELP {name} {_escaped(text)}"]
        lines += [f"{name}{_labels(labels)} {value:.10g}" for labels, value in samples if isfinite(value)]
    return "\n".join([*lines, "# EOF"]) + "\n"


def _families(judged: JudgedHistory) -> Iterator[tuple[str, str, list[Sample]]]:
    """A family's samples must stand together, so one pass for each of them."""
    current = [one for one in judged.series if one.current and one.points]
    health = "1 for the health of the machine's latest night, 0 for the others."
    yield "joinery_health", health, [
        ({"machine": one.name, "health": each.value}, float(one.health is each)) for one in judged.machines
        for each in Health
    ]  # fmt: skip
    latest = "When the machine's latest night began, in seconds since 1970."
    yield (
        "joinery_latest_night_timestamp_seconds",
        latest,
        [({"machine": one.name}, _began(one)) for one in judged.machines],
    )
    values = [(_about(one), one.points[-1].value) for one in current if one.basis is Basis.TIME]
    yield (
        "joinery_time_seconds",
        "Time for one sample on the latest night: the median of its blocks.",
        [(labels, value / 1e3) for labels, value in values if value is not None],
    )
    ratios = [(_about(one), one.points[-1].value) for one in current if one.basis.relative]
    yield (
        "joinery_ratio",
        "Time over the reference subject's, measured interleaved, on the latest night.",
        [(labels, value) for labels, value in ratios if value is not None],
    )
    levels = [(one, one.points[-1].level) for one in current]
    yield (
        "joinery_level",
        "What the latest night was compared with: seconds, or a ratio.",
        [(_about(one), level / (1e3 if one.basis is Basis.TIME else 1)) for one, level in levels if level is not None],
    )
    yield (
        "joinery_noise",
        "Usual night-to-night scatter of the series, as a fraction.",
        [(_about(one), one.points[-1].noise) for one in current if one.points[-1].noise is not None],
    )  # type: ignore[misc]
    yield (
        "joinery_evidence",
        "How far a change stands out, in units of the alarm threshold.",
        [(_about(one), one.points[-1].evidence) for one in current],
    )
    yield (
        "joinery_series_state",
        "1 for the state of the series on the latest night, 0 for the others.",
        [({**_about(one), "state": state.value}, float(one.state is state)) for one in current for state in State],
    )
    yield "joinery_clauses", "Clauses in each state on the latest night.", list(_clauses(judged))
    yield "joinery_left_out_files", "Files of the history that were not used.", [({}, float(len(judged.left_out)))]


def _began(machine: Machine) -> float:
    latest = next((night for night in reversed(machine.nights) if night.status != "missed"), None)
    return datetime.fromisoformat(latest.time).timestamp() if latest else float("nan")


def _about(one: Series) -> Labels:
    axes = {name: str(one.axes.get(name, "")) for name in ("workload", "backend", "world")}
    return {
        "machine": one.machine, "key": one.key, "name": one.name, "subject": one.subject, "basis": one.basis.value,
        **axes,
    }  # fmt: skip


def _clauses(judged: JudgedHistory) -> Iterator[Sample]:
    silent = {machine.name: machine.silent for machine in judged.machines}
    counts: dict[tuple[str, str, str, str, ClauseState], int] = {}
    for one in judged.clauses:
        place = (one.machine, one.subject, one.backend, str(one.world))
        for state in ClauseState:
            counts.setdefault((*place, state), 0)
        counts[(*place, one.states[-1 - silent[one.machine]])] += 1
    for (machine, subject, backend, world, state), count in counts.items():
        labels = {"machine": machine, "subject": subject, "backend": backend, "world": world, "state": state.value}
        yield labels, float(count)


def _labels(labels: Labels) -> str:
    pairs = ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items())
    return f"{{{pairs}}}" if pairs else ""


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
