"""Follows all series of one machine through its nights and says what became of each."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ..history import Note
from ..records.identity import spoken
from .dating import began, detectable, effect
from .few_nights import PairedRun, slower
from .model import Basis, Change, Night, Point, Series, State
from .nights import UNTRUSTED, Identity, Measured
from .parameters import Parameters
from .reference import Flags, Floats
from .watch import Step, Watch, thresholds


@dataclass
class _Event:
    """A change while it is being followed; indices are columns (nights of the machine)."""

    worse: bool
    since: int
    found: int
    level: float
    level_nights: int
    noise: float
    until: int | None = None
    accepted: int | None = None
    note: str = ""


@dataclass
class _Trace:
    """What was said of one series, night by night."""

    points: list[Point] = field(default_factory=list)
    events: list[_Event] = field(default_factory=list)


class Followed:
    """The series of one machine. ``nights``, ``tables``, ``paired`` go together; those of a missed night are empty."""

    def __init__(
        self,
        nights: Sequence[Night],
        tables: Sequence[Mapping[Identity, Measured]],
        paired: Sequence[Mapping[Identity, PairedRun]],
        notes: Sequence[Note],
        commands: Mapping[str, Sequence[str]],
        parameters: Parameters,
    ) -> None:
        self.nights, self.tables, self.paired = nights, tables, paired
        self.parameters, self.commands = parameters, commands
        self.machine = nights[0].machine
        self.identities = list(dict.fromkeys(identity for table in tables for identity in table))
        self.keys = [identity.key(self.machine) for identity in self.identities]
        self.values = self._numbers()
        self.traces = [_Trace() for _ in self.identities]
        self.notes = self._placed(notes)
        self.last: Step | None = None
        self.doubtful = np.zeros(len(self.identities), dtype=np.bool_)  # on the latest night, before any rerun
        self.few_nights = np.ones(len(self.identities), dtype=np.bool_)
        self.detectable = np.full(len(self.identities), np.nan)  # of series with few nights, on the next one

    def follow(self) -> list[Series]:
        """Judge every night in turn; afterwards one ``Series`` for each."""
        pools = np.array([list(Basis).index(identity.basis) for identity in self.identities], dtype=np.int64)
        watch = Watch(len(self.identities), self.parameters, pools=pools)
        for column, table in enumerate(self.tables):
            step = self._step(watch, column) if table else None
            for one, text in self.notes.get(column, ()):
                self._accept(watch, one, column, text)
            for one, trace in enumerate(self.traces):
                raised = bool(watch.raised[one])
                trace.points.append(self._point(one, column, step, raised) if step else self._no_point(one, column))
        return [self._series(one) for one in range(len(self.identities))]

    def _step(self, watch: Watch, column: int) -> Step:
        values, errors = self.values[:, column], self._errors(column)
        look = watch.look(values, errors)
        self.doubtful = watch.doubtful(look)
        step = watch.take(values, errors, slower=self._slower(column), reference=look.reference)
        self.few_nights = ~watch.judged
        self.detectable = np.where(watch.judged, np.nan, watch.few_nights.detectable(errors))
        for one in np.flatnonzero(step.regressed | step.improved | step.returned):
            self._note_events(int(one), column, step)
        self.last = step
        return step

    # -- numbers

    def _numbers(self) -> Floats:
        values: Floats = np.full((len(self.identities), len(self.nights)), np.nan)
        for one, identity in enumerate(self.identities):
            for column, table in enumerate(self.tables):
                measured = table.get(identity)
                if measured is not None and measured.attempts:
                    values[one, column] = np.log(measured.value)
        return values

    def _errors(self, column: int) -> Floats:
        table = self.tables[column]
        return np.array([table[i].error if i in table else np.nan for i in self.identities])

    def _slower(self, column: int) -> Flags:
        """Which were measured beside the code of an earlier night, and are slower."""
        paired = self.paired[column]
        found = [
            i in paired and self._of_level(one, column, paired[i].commit) and slower(paired[i], self.parameters)
            for one, i in enumerate(self.identities)
        ]
        return np.array(found, dtype=np.bool_)

    def _of_level(self, one: int, column: int, commit: str) -> bool:
        """Whether this code was measured on a night of the level that the series is compared with now."""
        events = self.traces[one].events
        start = 0 if not events else events[-1].since if events[-1].until is None else events[-1].until
        return any(night.commit == commit for night in self.nights[start:column])

    # -- notes

    def _placed(self, notes: Sequence[Note]) -> dict[int, list[tuple[int, str]]]:
        """Column -> (series, text): a note counts from the last night before it was written."""
        placed: dict[int, list[tuple[int, str]]] = {}
        for note in notes:
            if note.machine != self.machine or note.key not in self.keys:
                continue
            before = [column for column, night in enumerate(self.nights) if night.time <= note.time]
            if before:
                placed.setdefault(before[-1], []).append((self.keys.index(note.key), f"{note.text} ({note.who})"))
        return placed

    def _accept(self, watch: Watch, one: int, column: int, text: str) -> None:
        if watch.raised[one]:
            watch.accept(one)
            event = self.traces[one].events[-1]
            event.accepted, event.note = column, text

    # -- events and points

    def _note_events(self, one: int, column: int, step: Step) -> None:
        events = self.traces[one].events
        if step.returned[one]:
            events[-1].until = column
        if not (step.regressed[one] or step.improved[one]):
            return
        there = np.flatnonzero(np.isfinite(self.values[one, : column + 1]))
        reference = step.look.reference
        level, noise = float(reference.level[one]), float(step.look.noise[one])
        since = int(there[-int(step.look.span[one])])
        events.append(_Event(bool(step.regressed[one]), since, column, level, int(reference.nights[one]), noise))

    def _point(self, one: int, column: int, step: Step, raised: bool) -> Point:
        measured = self.tables[column].get(self.identities[one])
        if measured is None or not measured.attempts:
            return self._no_point(one, column)
        learning = bool(step.learning[one])
        reference, rank = step.look.reference, float(step.rank_p[one])
        return Point(
            night=self.nights[column].name,
            state=self._state(one, column, step, raised),
            value=measured.value,
            first=measured.attempts[0] if len(measured.attempts) > 1 else None,
            low=min(measured.blocks),
            high=max(measured.blocks),
            blocks=len(measured.blocks),
            level=None if learning else float(np.exp(reference.level[one])),
            noise=None if learning else _known(step.look.noise[one]),
            evidence=float(step.look.evidence[one]),
            rank_p=None if np.isnan(rank) else rank,
            why="",
        )

    def _no_point(self, one: int, column: int) -> Point:
        night, measured = self.nights[column], self.tables[column].get(self.identities[one])
        absent = "no run on this night" if night.status == "missed" else "not in the night's performance record"
        why = measured.why if measured else absent
        return Point(night.name, State.MISSING, None, None, None, None, 0, None, None, 0.0, None, why)

    def _state(self, one: int, column: int, step: Step, raised: bool) -> State:
        event = self.traces[one].events[-1] if self.traces[one].events else None
        if raised:
            return State.CONFIRMED
        settled = event is not None and column in (event.accepted, event.until)
        if step.look.evidence[one] >= self.parameters.suspect and not settled:
            return State.NEW
        if step.learning[one]:
            return State.LEARNING
        for happened, state in _recent(event):
            if column - happened < self.parameters.shown:
                return state
        return State.STEADY

    # -- series and changes

    def _series(self, one: int) -> Series:
        identity, trace = self.identities[one], self.traces[one]
        there = np.flatnonzero([identity in table for table in self.tables])
        first, latest = int(there[0]), int(there[-1])
        current = not self._replaced(identity, latest)
        end = len(self.nights) if current else latest + 1
        measured = any(point.value is not None for point in trace.points[:end])
        return Series(
            key=self.keys[one],
            name=identity.name,
            record_series=identity.record_series,
            machine=self.machine,
            subject=identity.subject,
            reference=identity.reference,
            basis=identity.basis,
            unit=identity.unit,
            axes=json.loads(self.tables[latest][identity].axes),
            workload_hash=identity.workload_hash,
            hardware=identity.hardware,
            same=identity.same,
            wrong=current and self._status(identity) == "void",
            lost=current and measured and self._status(identity) in ("failed", "hung", UNTRUSTED),
            few_nights=bool(self.few_nights[one]),
            doubtful=current and bool(self.doubtful[one]) and not self._yardstick(one),
            current=current,
            points=tuple(trace.points[first:end]),
            changes=tuple(self._changes(one)),
            detectable=self._detectable(one, trace.points[:end]),
            command=_filled(self.commands.get(self.nights[latest].name, ()), identity.record_series),
        )

    def _detectable(self, one: int, points: Sequence[Point]) -> float | None:
        """The smallest slow-down that is found: soon, or of a series with few nights on the next one."""
        if np.isfinite(self.detectable[one]):
            return float(self.detectable[one])
        point = next((point for point in reversed(points) if point.value is not None), None)
        if point is None or point.level is None or point.noise is None or self.last is None:
            return None
        nights, spans = int(self.last.look.reference.nights[one]), self.parameters.spans
        span = min(range(len(spans)), key=lambda place: abs(spans[place] - 3))
        limit = float(thresholds(self.parameters)[min(max(nights, 1), self.parameters.memory), span])
        return detectable(point.noise, nights, limit, spans[span])

    def _status(self, identity: Identity) -> str:
        """How the cell ended on the latest night that measured anything."""
        table = next((table for table in reversed(self.tables) if table), {})
        measured = table.get(identity)
        return measured.status if measured else "absent"

    def _replaced(self, identity: Identity, latest: int) -> bool:
        """Whether the same thing is measured later with another workload or on other hardware."""
        mine = (identity.record_series, identity.subject, identity.reference, identity.basis)
        return any(
            (other.record_series, other.subject, other.reference, other.basis) == mine and other != identity
            for table in self.tables[latest + 1 :]
            for other in table
        )

    def _changes(self, one: int) -> list[Change]:
        events = self.traces[one].events
        found = [self._change(one, number) for number in range(len(events))]
        point = self.traces[one].points[-1] if self.traces[one].points else None
        if point is not None and point.state is State.NEW:
            found.append(self._suspected(one))
        return found

    def _suspected(self, one: int) -> Change:
        """The change that the latest night suspects."""
        assert self.last is not None
        there = np.flatnonzero(np.isfinite(self.values[one]))
        reference = self.last.look.reference
        level, noise = float(reference.level[one]), float(self.last.look.noise[one])
        since = int(there[-int(self.last.look.span[one])])
        event = _Event(True, since, len(self.nights) - 1, level, int(reference.nights[one]), noise)
        return self._told(one, event, State.NEW, since, len(self.nights))

    def _change(self, one: int, number: int) -> Change:
        events = self.traces[one].events
        event = events[number]
        after = events[number + 1] if number + 1 < len(events) else None
        end = event.until if event.until is not None else (after.since if after else len(self.nights))
        state = State.IMPROVED
        if event.worse:
            state = State.ACKNOWLEDGED if event.accepted is not None else State.CONFIRMED
            if event.until is not None or (after is not None and self._undone(one, event, after)):
                state = State.RESOLVED
        return self._told(one, event, state, self._dated(one, event, end), max(end, event.found + 1))

    def _undone(self, one: int, event: _Event, after: _Event) -> bool:
        """Whether an acknowledged regression was later won back."""
        now = np.nanmedian(self.values[one, after.since : after.found + 1])
        then = np.nanmedian(self.values[one, event.since : event.found + 1])
        return not after.worse and bool(now < (event.level + then) / 2)

    def _dated(self, one: int, event: _Event, end: int) -> int:
        there = np.flatnonzero(np.isfinite(self.values[one]))
        since, found, stop = (int(np.searchsorted(there, at)) for at in (event.since, event.found, end))
        index = began(self.values[one, there], since, found, max(stop, found + 1), event.noise, self.parameters)
        return int(there[index])

    def _told(self, one: int, event: _Event, state: State, since: int, end: int) -> Change:
        there = np.flatnonzero(np.isfinite(self.values[one]))
        new = self.values[one, there[(there >= since) & (there < end)]][-self.parameters.window :]
        apart, half = effect(new, event.level, event.level_nights, event.noise, self.parameters)
        earlier = there[there < since]
        before = self.nights[int(earlier[-1]) if len(earlier) else since]
        start, alarms = self.nights[since], state is State.CONFIRMED and not self.identities[one].same
        return Change(
            series=self.keys[one],
            worse=event.worse,
            state=state,
            before=before.name,
            since=start.name,
            found=self.nights[event.found].name,
            until=self.nights[event.until].name if event.until is not None else "",
            effect=float(np.expm1(apart)),
            low=float(np.expm1(apart - half)),
            high=float(np.expm1(apart + half)),
            old_level=float(np.exp(event.level)),
            new_level=float(np.exp(event.level + apart)),
            old_commit=before.commit,
            new_commit=start.commit,
            versions=_different(before.versions, start.versions),
            note=event.note,
            alarms=alarms and not self._yardstick(one),
        )

    def _yardstick(self, one: int) -> bool:
        """Whether a ratio says it better: of this very cell, or because this is what ratios are divided by."""
        mine = self.identities[one]
        if mine.basis.relative:
            return False
        paired = [i for i in self.tables[self._latest(mine)] if i.basis is Basis.RATIO and not i.same]
        if mine.subject == self.parameters.reference:
            return bool(paired)
        return any((i.record_series, i.subject) == (mine.record_series, mine.subject) for i in paired)

    def _latest(self, identity: Identity) -> int:
        return max(column for column, table in enumerate(self.tables) if identity in table)


def _known(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _filled(words: Sequence[str], series: str) -> str:
    """The command that measures a series again, as one types it."""
    return spoken([series if word == "{series}" else word for word in words])


def _recent(event: _Event | None) -> list[tuple[int, State]]:
    """When the latest change was last heard of, and as what."""
    if event is None:
        return []
    if not event.worse:
        return [(event.found, State.IMPROVED)]
    if event.until is not None:
        return [(event.until, State.RESOLVED)]
    return [(event.accepted, State.ACKNOWLEDGED)] if event.accepted is not None else []


def _different(old: Mapping[str, str], new: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    names = [*old, *(name for name in new if name not in old)]
    return {name: (old.get(name, ""), new.get(name, "")) for name in names if old.get(name, "") != new.get(name, "")}
