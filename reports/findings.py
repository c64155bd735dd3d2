"""What a reader should know tonight, most urgent first: made from a judged history, for the page and the exports."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from .judging import Basis, Change, ClauseChange, ClauseState, JudgedHistory, Machine, Series, State
from .judging.model import RETIRED, SILENT
from .wording import interval, plural


class Urgency(StrEnum):
    ALARM = "alarm"  # what makes the night unhealthy
    WATCH = "watch"  # not certain, or explained by the machine
    KNOWN = "known"  # somebody has left a note
    GOOD = "good"  # came back, or became better


@dataclass(frozen=True)
class Finding:
    """One thing to know about a series or a clause."""

    urgency: Urgency
    machine: str
    what: str  # in two or three words: "slower", "broken (failed)" …
    key: str  # as ``python -m reports ack`` takes it
    name: str
    since: str  # the night
    why: str  # witness, note or reason; may be empty
    command: str  # to reproduce it; may be empty
    series: Series | None = None
    change: Change | None = None
    clause: ClauseChange | None = None


def findings(judged: JudgedHistory) -> list[Finding]:
    """Of the machines that are still at work; the worst first, and among those the largest effect."""
    homes = {machine.name: machine for machine in at_work(judged)}
    current = [one for one in judged.series if one.machine in homes and one.current]
    alarming = {_cell(one) for one in current if any(change.alarms for change in one.changes)}
    found = [each for one in current for each in _series(one) if not _said_better(each, alarming)]
    found += _clauses(judged, homes)
    order = list(Urgency)
    return sorted(found, key=lambda one: (order.index(one.urgency), -_size(one), one.name, one.key))


def at_work(judged: JudgedHistory) -> tuple[Machine, ...]:
    """The machines whose answer counts for the history as a whole."""
    return tuple(machine for machine in judged.machines if machine.silent < RETIRED) or judged.machines


def gaps(machine: Machine) -> list[str]:
    """Why a machine's answer is not whole."""
    if machine.silent >= SILENT:
        return [f"no run for {plural(machine.silent, 'night')}"]
    latest = next((night for night in reversed(machine.nights) if night.status != "missed"), None)
    if latest is None:
        return ["no night at all"]
    how = {"missing": "is missing", "half": "is not whole"}
    return [f"{part.name} {how[part.status]}: {part.why}" for part in latest.parts if part.status in how]


def few_nights(judged: JudgedHistory, machines: Iterable[Machine]) -> str:
    """What could have been told of series that have too few nights to be judged by them alone; empty if there are none.

    Those that cannot alarm yet (times, and ratios on their first nights) are counted, too.
    """
    names = {machine.name for machine in machines}
    few = [one for one in judged.series if one.machine in names and one.current and one.few_nights]
    sizes = sorted(one.detectable for one in few if one.detectable is not None and not one.same)
    if not few:
        return ""
    p = judged.parameters
    how_many = f"{len(few)} series {'has' if len(few) == 1 else 'have'} fewer than {p.least} nights: "
    if not sizes:
        return how_many + f"from the third night on, ratios to {p.reference} can alarm."
    half, most = sizes[len(sizes) // 2], sizes[int(0.9 * (len(sizes) - 1))]
    return how_many + (
        f"of {len(sizes)} ratios to {p.reference}, one night tells (nine times of ten) a slow-down of "
        f"{sizes[0]:.0%} at best, {half:.0%} for half of them, {most:.0%} for nine of ten."
    )


def _cell(one: Series) -> tuple[str, str, str]:
    return one.machine, one.record_series, one.subject


def _said_better(finding: Finding, alarming: set[tuple[str, str, str]]) -> bool:
    """Whether a doubt only repeats what an alarm of the same cell says."""
    one = finding.series
    return finding.urgency is Urgency.WATCH and one is not None and _cell(one) in alarming


def _size(finding: Finding) -> float:
    return abs(finding.change.effect) if finding.change else 9.0


def _series(one: Series) -> Iterator[Finding]:
    def found(urgency: Urgency, what: str, why: str, change: Change | None = None) -> Finding:
        since = change.since if change else one.points[-1].night if one.points else ""
        return Finding(urgency, one.machine, what, one.key, one.name, since, why, one.command, one, change)

    if one.basis is Basis.TIME and one.wrong:
        yield found(Urgency.ALARM, "wrong numbers", one.points[-1].why or "its results are not those of one process")
    if one.basis is Basis.TIME and one.lost:
        yield found(Urgency.ALARM, "no number any more", one.points[-1].why)
    alarms = [change for change in one.changes if change.alarms]
    for change in alarms:
        yield found(Urgency.ALARM, "slower", "", change)
    latest = one.changes[-1] if one.changes else None
    if latest is None or alarms or latest.state is not one.state:
        return
    match one.state:
        case State.NEW:
            few = "few nights, and no earlier code beside which tonight's is clearly slower: " if one.few_nights else ""
            why = f"{few}the next nights decide"
            yield found(Urgency.WATCH, "looks slower, not certain yet", why, latest)
        case State.CONFIRMED:
            why = "measured against itself: a false alarm" if one.same else "its ratio to the reference has not changed"
            yield found(Urgency.WATCH, "slower, without alarm", why, latest)
        case State.ACKNOWLEDGED:
            yield found(Urgency.KNOWN, "slower, acknowledged", latest.note, latest)
        case State.RESOLVED:
            yield found(Urgency.GOOD, "back to its level", f"was {interval(latest)}", latest)
        case State.IMPROVED:
            yield found(Urgency.GOOD, "faster", "", latest)


def _clauses(judged: JudgedHistory, homes: dict[str, Machine]) -> Iterator[Finding]:
    states = {(one.machine, one.key): one for one in judged.clauses}
    latest = {(one.machine, one.history): one for one in judged.clause_changes}
    for place, change in latest.items():
        if change.machine not in homes:
            continue
        machine, history = homes[change.machine], states[place]
        urgent = _urgency(change, machine, judged.parameters.shown)
        if urgent is None or _last(machine, history.states) is ClauseState.ABSENT:
            continue
        urgency, what, why = urgent
        name = f"{change.clause} by {change.subject} on {change.backend}, world {change.world}"
        name += f": {history.title}" if history.title else ""
        yield Finding(
            urgency, change.machine, what, change.history, name, change.night, why, change.command, clause=change
        )


def _urgency(change: ClauseChange, machine: Machine, shown: int) -> tuple[Urgency, str, str] | None:
    recent = {night.name for night in machine.nights[-shown:]}
    if change.new is ClauseState.BROKEN and change.alarms:
        return Urgency.ALARM, f"broken ({change.outcome})", change.witness
    if change.new is ClauseState.BROKEN:
        return Urgency.KNOWN, f"broken ({change.outcome}), acknowledged", change.note or change.witness
    if change.night not in recent:
        return None
    if change.new is ClauseState.UNSTEADY:
        return Urgency.WATCH, "broken once, kept when asked again", change.witness
    if change.new is ClauseState.KEPT and change.old is not ClauseState.ABSENT:
        return Urgency.GOOD, "kept again", f"was {change.old}"
    return None


def _last(machine: Machine, states: tuple[ClauseState, ...]) -> ClauseState:
    """What the latest night that was not missed says."""
    return states[-1 - machine.silent] if len(states) > machine.silent else ClauseState.ABSENT
