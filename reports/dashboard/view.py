"""From a judged history to the plain values that the templates show."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from ..findings import Finding, Urgency, at_work, gaps
from ..judging import (
    Basis,
    ClauseChange,
    ClauseHistory,
    ClauseState,
    Health,
    JudgedHistory,
    Machine,
    Night,
    Series,
    State,
)
from ..records import RecordFile
from ..wording import moment, percent, plural

_WANTED = ("workload", "backend", "world")  # axes with a filter of their own
_MOST_CHANGES = 200  # of clauses, in the table; the export has all


@dataclass(frozen=True)
class Card:
    """A machine, as the first view shows it."""

    machine: Machine
    latest: Night | None
    at_work: bool
    counts: dict[State, int]
    clauses: dict[ClauseState, int]
    gaps: list[str]
    facts: list[tuple[str, str]]


@dataclass(frozen=True)
class SeriesRow:
    """One series in the table of trends."""

    number: int  # of its data file
    series: Series
    machine: int
    axes: dict[str, str]
    words: str  # what the search looks into
    today: bool  # measured today, as far as is known
    off: float | None  # latest value against its level, as a fraction
    noise: float | None
    value: float | None


@dataclass(frozen=True)
class Column:
    """Of the matrix: one subject on one backend of one machine."""

    machine: int
    name: str
    subject: str
    backend: str
    worlds: tuple[int, ...]


@dataclass(frozen=True)
class MatrixRow:
    clause: str
    title: str
    level: str
    area: str
    cells: tuple[tuple[tuple[int, ClauseState, str], ...], ...]  # by column: world, state, key
    states: str  # of all cells, for the filter
    changed: bool  # at some time in the history


@dataclass(frozen=True)
class Power:
    """What share of random mutants of the implementation the suite killed."""

    lead: str
    rows: tuple[tuple[str, int, int, str, str], ...]  # package, killed, of, rate, interval


def power(record: RecordFile) -> Power:
    """From its record, which is whole."""
    footer = record.footer or {}
    rows = tuple(_rate(rate) for rate in footer["rates"])
    planted = footer.get("in_sample") or {}
    said = f"In sample: {planted['killed']} of {planted['of']} planted defects. " if planted else ""
    when = str(record.header["time"])[:16].replace("T", " ")
    return Power(
        f"Mistakes made at random (seed {record.header.get('seed', '?')}), for which no check was written; those that "
        f"no check can show are left out. {said}Measured {when} UTC.",
        rows,
    )


def _rate(rate: dict[str, Any]) -> tuple[str, int, int, str, str]:
    value = "none drawn" if rate["rate"] is None else f"{rate['rate']:.1%}"
    return rate["part"], rate["killed"], rate["counted"], value, f"{rate['low']:.1%} to {rate['high']:.1%}"


def cards(judged: JudgedHistory) -> list[Card]:
    working = {machine.name for machine in at_work(judged)}
    return [_card(judged, machine, machine.name in working) for machine in judged.machines]


def _card(judged: JudgedHistory, machine: Machine, working: bool) -> Card:
    latest = next((night for night in reversed(machine.nights) if night.status != "missed"), None)
    mine = [one for one in judged.series if one.machine == machine.name and one.current]
    counts = Counter(one.state for one in mine)
    clauses = Counter(one.states[-1 - machine.silent] for one in judged.clauses if one.machine == machine.name)
    return Card(
        machine, latest, working, {state: counts[state] for state in State if counts[state]},
        {state: clauses[state] for state in ClauseState if clauses[state] and state is not ClauseState.ABSENT},
        gaps(machine), _facts(machine, latest),
    )  # fmt: skip


def _facts(machine: Machine, latest: Night | None) -> list[tuple[str, str]]:
    known = {name: value for name, value in machine.facts.items() if value not in (None, "", [], {})}
    found = [(name, _plain(value)) for name, value in known.items() if name != "environment"]
    return found + [(name, value) for name, value in (latest.versions if latest else {}).items() if name not in known]


def _plain(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {each}" for name, each in value.items())
    return ", ".join(map(_plain, value)) if isinstance(value, list) else str(value)


def headline(judged: JudgedHistory, found: list[Finding]) -> str:
    """The first thing that is read."""
    if judged.health is Health.HEALTHY:
        return "Healthy"
    if judged.health is Health.UNJUDGED:
        return "Could not judge tonight"
    alarms = [one for one in found if one.urgency is Urgency.ALARM]
    clauses = len({one.clause.clause for one in alarms if one.clause})
    slower = len({one.key for one in alarms if one.change})
    other = len({one.key for one in alarms if not one.change and not one.clause})
    said = [f"{slower} series slower"] if slower else []
    said += [f"{plural(clauses, 'clause')} broken"] if clauses else []
    said += [f"{other} series without right numbers"] if other else []
    return ", ".join(said) or "Regressed"


def lead(judged: JudgedHistory) -> str:
    """One sentence under the headline."""
    if not judged.machines:
        return "The history holds no night that can be read."
    working = at_work(judged)
    names = {machine.name for machine in working}
    series = sum(one.current and one.machine in names for one in judged.series)
    clauses = len({one.clause for one in judged.clauses if one.machine in names})
    latest = max((night.name for m in working for night in m.nights if night.status != "missed"), default="")
    nights = plural(sum(night.status != "missed" for m in judged.machines for night in m.nights), "night")
    said = f"{series} series and {plural(clauses, 'clause')} on {plural(len(working), 'machine')}"
    return f"{said}, judged over {nights}. The latest began {moment(latest)} UTC."


def by_urgency(found: list[Finding]) -> dict[Urgency, list[Finding]]:
    return {urgency: [one for one in found if one.urgency is urgency] for urgency in Urgency}


def series_rows(judged: JudgedHistory) -> list[SeriesRow]:
    """Alarms first, then by name."""
    numbers = {machine.name: at for at, machine in enumerate(judged.machines)}
    working = {machine.name for machine in at_work(judged)}
    rows = [
        _row(number, one, numbers[one.machine], today=one.current and one.machine in working)
        for number, one in enumerate(judged.series)
    ]
    order = (State.CONFIRMED, State.NEW, State.ACKNOWLEDGED, State.RESOLVED, State.IMPROVED)
    rank = {state: at for at, state in enumerate(order)}
    return sorted(
        rows, key=lambda row: (not row.today, rank.get(row.series.state, 9), row.series.basis.value, row.series.name)
    )


def _row(number: int, one: Series, machine: int, *, today: bool) -> SeriesRow:
    point = one.points[-1] if one.points else None
    axes = {name: str(one.axes.get(name, "")) for name in _WANTED}
    words = " ".join([one.name, one.key, *map(str, one.axes.values())]).lower()
    off = point.value / point.level - 1 if point and point.value is not None and point.level else None
    return SeriesRow(
        number, one, machine, axes, words, today, off, point.noise if point else None, point.value if point else None
    )


def choices(rows: list[SeriesRow]) -> dict[str, list[str]]:
    """What each filter offers."""
    found = {name: {row.axes[name] for row in rows} for name in _WANTED} | {"subject": {r.series.subject for r in rows}}
    return {name: sorted(values - {""}, key=_natural) for name, values in found.items()}


def _natural(text: str) -> tuple[int, str]:
    return (int(text), "") if text.isdecimal() else (0, text)


def columns(judged: JudgedHistory) -> list[Column]:
    """Only of machines at work; the others are history, and the exports have them."""
    working = {machine.name for machine in at_work(judged)}
    numbers = {machine.name: at for at, machine in enumerate(judged.machines)}
    places: dict[tuple[str, str, str], set[int]] = {}
    for one in judged.clauses:
        if one.machine in working:
            places.setdefault((one.machine, one.subject, one.backend), set()).add(one.world)
    return [
        Column(numbers[machine], machine, subject, backend, tuple(sorted(worlds)))
        for (machine, subject, backend), worlds in sorted(places.items())
    ]


def matrix(judged: JudgedHistory, across: list[Column]) -> list[MatrixRow]:
    silent = {machine.name: machine.silent for machine in judged.machines}
    by_clause: dict[str, list[ClauseHistory]] = {}
    for one in judged.clauses:
        by_clause.setdefault(one.clause, []).append(one)
    changed = {change.clause for change in judged.clause_changes}
    rows = []
    for clause, found in sorted(by_clause.items()):
        cells: dict[tuple[str, str, str], list[tuple[int, ClauseState, str]]] = {}
        for one in found:
            state = one.states[-1 - silent[one.machine]]
            cells.setdefault((one.machine, one.subject, one.backend), []).append((one.world, state, one.key))
        shown = tuple(tuple(sorted(cells.get((c.name, c.subject, c.backend), []))) for c in across)
        states = sorted({state.value.replace(" ", "-") for cell in shown for _, state, _ in cell})
        about = next((one for one in found if one.title), found[0])
        area = about.area or clause.split("-")[0]
        rows.append(MatrixRow(clause, about.title, about.level, area, shown, " ".join(states), clause in changed))
    return [row for row in rows if any(row.cells)]


def side_by_side(judged: JudgedHistory) -> list[tuple[str, str, list[SeriesRow | None]]]:
    """Every series that several machines measure: name, unit, and its row on each of the machines."""
    rows = series_rows(judged)
    found: dict[tuple[str, str, Basis], list[SeriesRow | None]] = {}
    for row in sorted(rows, key=lambda row: row.series.name):
        one = row.series
        place = found.setdefault((one.name, one.unit, one.basis), [None] * len(judged.machines))
        if place[row.machine] is None or one.current:
            place[row.machine] = row
    return [(name, unit, each) for (name, unit, _), each in found.items() if len(each) - each.count(None) > 1]


def clause_changes(judged: JudgedHistory) -> list[ClauseChange]:
    """The newest first."""
    return list(reversed(judged.clause_changes))[:_MOST_CHANGES]


def accounting(judged: JudgedHistory) -> list[str]:
    """What the history says about the judgement itself."""
    so_far = judged.accounting
    lines = [f"{so_far.verdicts:,} verdicts (series times nights) so far, "
             f"{plural(so_far.alarms, 'regression')} confirmed."]  # fmt: skip
    if so_far.same_verdicts:
        share = f"{so_far.same_low:.1g} to {so_far.same_high:.1g}"
        lines.append(
            f"Series that are measured against themselves: {plural(so_far.same_alarms, 'false alarm')} in "
            f"{so_far.same_verdicts:,} verdicts; the false-alarm rate lies between {share} for each verdict (95 %)."
        )
    sizes = sorted(
        one.detectable for one in judged.series if one.current and one.detectable is not None and not one.few_nights
    )
    if sizes:
        half, most = sizes[len(sizes) // 2], sizes[int(0.9 * (len(sizes) - 1))]
        lines.append(
            f"Smallest slow-down found within three nights nine times of ten: {percent(half)} for half of the series, "
            f"{percent(most)} for nine of ten."
        )
    return lines
