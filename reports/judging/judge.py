"""Judges a whole history: every machine, every night, every series and clause, from the records alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import groupby, pairwise
from pathlib import Path
from statistics import median
from typing import Any

from ..history import Found, LeftOut, Note, StoredNight, hardware, scan
from ..history.layout import BEFORE, PARTS, part_of
from ..records import RecordFile
from . import clauses
from .few_nights import PairedRun
from .model import (
    RETIRED,
    SILENT,
    Accounting,
    Basis,
    ClauseChange,
    ClauseHistory,
    ClauseState,
    Health,
    JudgedHistory,
    Machine,
    Night,
    Part,
    Series,
    State,
    Versions,
)
from .nights import Identity, Measured, measured
from .parameters import DEFAULT, Parameters
from .series import Followed


def judge(history: Path | str, *, now: datetime | None = None, parameters: Parameters = DEFAULT) -> JudgedHistory:
    """Judge the history in a folder as of ``now`` (by default this moment; later nights are left out)."""
    now = now or datetime.now(UTC)
    found = scan(Path(history), now)
    left_out = list(found.left_out)
    machines, series, histories, changes = [], [], [], []
    for name, stored in groupby(found.nights, key=lambda night: night.machine):
        home = _Home(name, list(stored), found, left_out, parameters)
        nights = home.nights(now)
        mine, own, steps = home.judged(nights)
        machines.append(_machine(name, nights, mine, own, steps))
        series += mine
        histories += own
        changes += steps
    changes.sort(key=lambda change: (change.night, change.machine, change.history))
    return JudgedHistory(
        str(history), now.isoformat(timespec="seconds"), parameters, tuple(machines), tuple(series), tuple(histories),
        tuple(changes), tuple(sorted(left_out, key=lambda one: one.path)), _accounting(series),
    )  # fmt: skip


class _Home:
    """The nights of one machine while they are read; raw samples are let go as soon as they are summed up."""

    def __init__(
        self, name: str, stored: Sequence[StoredNight], found: Found, left_out: list[LeftOut], parameters: Parameters
    ) -> None:
        self.name, self.root, self.parameters = name, found.root, parameters
        self.notes: Sequence[Note] = found.notes
        self.about: dict[str, clauses.ClauseInfo] = {}
        self.commands: dict[str, tuple[str, ...]] = {}
        self.perf: dict[str, dict[Identity, Measured]] = {}
        self.paired: dict[str, dict[Identity, PairedRun]] = {}
        self.kept: dict[str, clauses.Table] = {}
        self.read = [self._read(night, left_out) for night in stored]

    def _read(self, stored: StoredNight, left_out: list[LeftOut]) -> Night:
        records = {part: stored.records(part, left_out, self.root) for part in PARTS}
        header = next((found[0].header for found in records.values() if found), {})
        header = next((found[0].header for part, found in records.items() if found and part == "perf"), header)
        before = stored.records(BEFORE, left_out, self.root)
        place = hardware(_facts(header))
        self.perf[stored.name] = measured(records["perf"], place, self.parameters.reference)
        self.paired[stored.name] = self._paired(records["perf"][1:], before, place)
        self.kept[stored.name] = clauses.table(records["conformance"])
        self.about = clauses.info_of(records["conformance"]) or self.about
        if records["perf"]:
            self.commands[stored.name] = _again(records["perf"][0].header)
        parts = tuple(self._part(part, stored, records[part], before if part == "perf" else ()) for part in PARTS)
        status = "whole" if all(part.status in ("whole", "off") for part in parts) else "half"
        facts = {**_facts(header), "environment": header.get("environment", {})}
        commit = str(header.get("commit", stored.manifest.get("commit", "")))
        return Night(self.name, stored.name, stored.time, status, commit, _versions(header), parts, facts)

    def _paired(
        self, again: Sequence[RecordFile], before: Sequence[RecordFile], place: str
    ) -> dict[Identity, PairedRun]:
        """What was measured again, beside the code of an earlier night."""
        commit = str(before[0].header["commit"]) if before else ""
        then = measured(before, place, self.parameters.reference)
        now = measured(again, place, self.parameters.reference) if then else {}
        both = [one for one in then if one in now and then[one].blocks and now[one].blocks]
        return {one: PairedRun(now[one], then[one], commit) for one in both}

    def _part(
        self, name: str, stored: StoredNight, records: Sequence[RecordFile], more: Sequence[RecordFile] = ()
    ) -> Part:
        """How a part of a night ended, from its record and from what the nightly command noted."""
        files = tuple(str(record.path.relative_to(self.root)) for record in (*records, *more))
        noted = stored.manifest.get("parts", {}).get(name, {})
        why = str(noted.get("why", "")) if isinstance(noted, dict) else ""
        first = [record for record in records if part_of(record.path.name) == (name, 1)]
        if not first and isinstance(noted, dict) and noted.get("off"):
            return Part(name, "off", why, files)
        if not first:
            return Part(name, "missing", why or "no readable record", files)
        if not first[0].complete:
            return Part(name, "half", why or "its run was interrupted", files)
        if name == "perf" and first[0].rows and not any(row["status"] == "ok" for row in first[0].rows):
            return Part(name, "half", why or f"nothing could be measured: {first[0].rows[0]['reason']}", files)
        return Part(name, "half" if why else "whole", why, files)

    def nights(self, now: datetime) -> list[Night]:
        """The nights with the missed ones in between, at the pace that the machine has kept so far.

        A run that comes late by less than half the pace has missed nothing. Between two runs no more nights are missed
        than by a machine that is retired: a night that a clock has dated 1970 is not followed by twenty thousand.
        """
        days = [datetime.fromisoformat(night.time) for night in self.read]
        gaps = [(later.date() - day.date()).days for day, later in pairwise(days)]
        pace = max(1, round(median(gaps))) if gaps else 1
        found: list[Night] = []
        for night, day, until in zip(self.read, days, [*days[1:], now], strict=True):
            found.append(night)
            passed = (until.date() - day.date()).days
            due = passed // pace if until is now else min((passed + (pace - 1) // 2) // pace, RETIRED + 1)
            found += [self._missed(day + timedelta(days=pace * number)) for number in range(1, due)]
        return found

    def _missed(self, day: datetime) -> Night:
        parts = tuple(Part(part, "missing", "no run on this night", ()) for part in PARTS)
        name = f"{day:%Y-%m-%d}"
        return Night(self.name, name, name, "missed", "", {}, parts)

    def judged(self, nights: Sequence[Night]) -> tuple[list[Series], list[ClauseHistory], list[ClauseChange]]:
        tables = [self.perf.get(night.name, {}) for night in nights]
        paired = [self.paired.get(night.name, {}) for night in nights]
        followed = Followed(nights, tables, paired, self.notes, self.commands, self.parameters)
        series = followed.follow() if any(tables) else []
        histories, changes = clauses.histories(
            nights, [self.kept.get(night.name, {}) for night in nights], self.about, self.notes
        )
        return series, histories, changes


def _again(header: Mapping[str, Any]) -> tuple[str, ...]:
    """The words that measure one series again, "{series}" standing for its name; those of the whole run if need be."""
    words = header.get("again")
    if isinstance(words, list):
        return tuple(map(str, words))
    command = [str(word) for word in header["command"]]
    return ("python", *command[1:]) if command else ()


def _facts(header: Mapping[str, Any]) -> dict[str, Any]:
    machine = header.get("machine")
    return dict(machine) if isinstance(machine, dict) else {}


def _versions(header: Mapping[str, Any]) -> Versions:
    """Everything that may explain a change: packages, kernel, driver, variables."""
    found = {name: str(value) for name, value in (header.get("versions") or {}).items()}
    facts = _facts(header)
    found.update({name: str(facts[name]) for name in ("kernel", "driver", "nccl", "host") if facts.get(name)})
    return found | {name: str(value) for name, value in (header.get("environment") or {}).items()}


def _machine(
    name: str,
    nights: Sequence[Night],
    series: Sequence[Series],
    histories: Sequence[ClauseHistory],
    changes: Sequence[ClauseChange],
) -> Machine:
    """The machine's answer: what its latest night says."""
    latest = next(night for night in reversed(nights) if night.status != "missed")
    worse = [
        f"{one.name} is {change.effect:.1%} slower since {change.since} ({one.key})"
        for one in series
        if one.current
        for change in one.changes
        if change.alarms
    ]
    times = [one for one in series if one.basis is Basis.TIME]
    worse += [f"{one.name} gives wrong numbers ({one.key})" for one in times if one.wrong]
    worse += [f"{one.name} gives no number any more: {one.points[-1].why} ({one.key})" for one in times if one.lost]
    absent = {one.key for one in histories if one.states[nights.index(latest)] is ClauseState.ABSENT}
    worse += [
        f"{change.clause} is broken ({change.outcome}) by {change.subject} on {change.backend} at world {change.world} "
        f"since {change.night}"
        for change in changes
        if change.alarms and change.history not in absent
    ]
    unknown = [f"{part.name} is missing: {part.why}" for part in latest.parts if part.status == "missing"]
    unknown += [f"{part.name} is not whole: {part.why}" for part in latest.parts if part.status == "half"]
    silent = len(nights) - 1 - nights.index(latest)
    if silent >= SILENT:
        return Machine(name, latest.facts, tuple(nights), Health.UNJUDGED, (f"no run for {silent} nights", *worse))
    health = Health.REGRESSED if worse else Health.UNJUDGED if unknown else Health.HEALTHY
    return Machine(name, latest.facts, tuple(nights), health, tuple(worse + unknown))


def _accounting(series: Iterable[Series]) -> Accounting:
    """How often something was judged and found, and what the same-against-same series say about false alarms."""
    counted = [
        (sum(point.level is not None and point.value is not None for point in one.points), one.same, _alarms(one))
        for one in series
    ]
    verdicts, alarms = sum(c[0] for c in counted), sum(c[2] for c in counted if not c[1])
    same, false = [c[0] for c in counted if c[1]], [c[2] for c in counted if c[1]]
    return Accounting(verdicts, alarms, sum(same), sum(false), *clustered(false, same))


def _alarms(series: Series) -> int:
    return sum(change.worse and change.state is not State.NEW for change in series.changes)


def clustered(happened: Sequence[int], of: Sequence[int]) -> tuple[float, float]:
    """The 95 % interval of a rate that was counted in groups: series, machines, or whole histories.

    What happens within a group hangs together (a night is noisy for all series, a false alarm stands for nights), so
    only groups are independent. Poisson's interval, of a count divided by how much more than by chance groups differ.
    """
    from scipy.stats import gamma

    groups = [(count, size) for count, size in zip(happened, of, strict=True) if size]
    total, whole = sum(count for count, _ in groups), sum(size for _, size in groups)
    if not whole:
        return 0.0, 1.0
    expected = [(count, total * size / whole) for count, size in groups]
    excess = sum((count - mean) ** 2 / mean for count, mean in expected) if total else 0.0
    share = max(1.0, excess / max(1, len(groups) - 1))
    low = float(gamma.ppf(0.025, total / share)) * share / whole if total else 0.0
    return low, min(1.0, float(gamma.ppf(0.975, total / share + 1)) * share / whole)
