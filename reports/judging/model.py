"""What is known of a history once it has been judged: frozen values that pages and exports are made from."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from ..history import LeftOut
from .parameters import Parameters

# The version of each tool, the commit, the hardware … as far as a reader wants to know what changed with a change.
Versions = dict[str, str]


SILENT = 3  # missed nights in a row after which a machine's last answer is no answer any more …
RETIRED = 30  # … and after which it no longer counts for the history as a whole


class State(StrEnum):
    """Where a series stands on one night."""

    MISSING = "missing"  # the night holds no usable number of this series
    LEARNING = "learning"  # too few earlier nights to compare with
    STEADY = "steady"
    NEW = "new"  # looks slower, not yet certain: no alarm, the next nights decide
    CONFIRMED = "confirmed"  # slower, and nobody has said anything about it: alarm
    ACKNOWLEDGED = "acknowledged"  # slower, and somebody has left a note: no alarm
    RESOLVED = "resolved"  # was slower, and has just come back (shown for some nights, then steady)
    IMPROVED = "improved"  # has just become faster for good (shown for some nights, then steady)


class Health(StrEnum):
    """The answer of one machine's latest night, and the exit status that goes with it."""

    HEALTHY = "healthy"  # 0
    REGRESSED = "regressed"  # 1: a confirmed regression, or a broken clause, that nobody has acknowledged
    UNJUDGED = "could not judge"  # 2: a part of the night is missing, or there is no night at all

    @property
    def exit_status(self) -> int:
        return list(Health).index(self)


class Basis(StrEnum):
    """What the numbers of a series are."""

    TIME = "time"  # milliseconds for one sample (an iteration, or a whole uneven run)
    RATIO = "ratio"  # time over the reference subject's time, measured interleaved in the same processes
    # the same of the processor time of all ranks' main threads: blind to waiting, and steadier where cores are shared
    PROCESSOR = "processor"

    @property
    def relative(self) -> bool:
        """Whether the numbers are over the reference subject's."""
        return self is not Basis.TIME


@dataclass(frozen=True)
class Part:
    """One of the things that a night measures: ``conformance`` or ``perf``."""

    name: str
    status: str  # "whole", "half" (ended early; what it holds is used), "missing", or "off" (not asked for)
    why: str  # why it is not whole; empty if it is
    files: tuple[str, ...]  # the record files, relative to the history folder; the second one is the rerun


@dataclass(frozen=True)
class Night:
    """One run of the nightly command on one machine, or the absence of one."""

    machine: str
    name: str  # the folder's name: the start in UTC, e.g. "2026-11-20T021500Z-3fa2"; "2026-11-21" if missed
    time: str  # ISO 8601, UTC; of a missed night only the day
    status: str  # "whole", "half" or "missed"
    commit: str  # "" if unknown; a trailing "+" says that files were changed since
    versions: Versions
    parts: tuple[Part, ...]
    facts: dict[str, Any] = field(default_factory=dict)  # the header's machine and environment, as recorded

    @property
    def key(self) -> str:
        """Unique in a history."""
        return f"{self.machine}/{self.name}"


@dataclass(frozen=True)
class Machine:
    """A machine of the history, and its answer today."""

    name: str  # the folder's name
    facts: dict[str, Any]  # host, processor, cores, gpus …, from its latest night
    nights: tuple[Night, ...]  # in order of time, missed ones included
    health: Health
    reasons: tuple[str, ...]  # one sentence for each reason of the health

    @property
    def silent(self) -> int:
        """Nights that it has missed since its latest run."""
        return next((back for back, night in enumerate(reversed(self.nights)) if night.status != "missed"), 0)


@dataclass(frozen=True)
class Point:
    """One series on one night."""

    night: str  # Night.name
    state: State
    value: float | None  # the night's value (median over blocks); None if MISSING
    first: float | None  # what was measured before the rerun, if there was one
    low: float | None  # lowest and highest block median of the night
    high: float | None
    blocks: int
    level: float | None  # what the night was compared with; None while LEARNING
    noise: float | None  # night-to-night noise of the series as a fraction (0.03 is 3 %)
    evidence: float  # how far the best change in sight stands out, in units of the alarm threshold (1.0 alarms)
    rank_p: float | None  # p of the Mann-Whitney test of the nights since that change against the window before
    why: str  # why it is missing; empty otherwise


@dataclass(frozen=True)
class Change:
    """A change of level that was found: a regression or an improvement."""

    series: str  # Series.key
    worse: bool
    state: State  # NEW, CONFIRMED, ACKNOWLEDGED, RESOLVED or IMPROVED: as of the latest night
    before: str  # name of the last night on the old level
    since: str  # name of the first night on the new level, by change-point search
    found: str  # name of the night whose verdict first said so (for NEW: so far)
    until: str  # name of the night on which it was resolved; empty if it was not
    effect: float  # fraction: 0.1 is 10 % slower, -0.1 is 10 % faster
    low: float  # confidence interval of the effect
    high: float
    old_level: float
    new_level: float
    old_commit: str
    new_commit: str
    versions: dict[str, tuple[str, str]]  # what else changed between ``before`` and ``since``: name -> (old, new)
    note: str  # of the acknowledgement
    alarms: bool  # False also where a paired series of the same thing says that the whole machine moved


@dataclass(frozen=True)
class Series:
    """One thing measured night after night on one machine: the unit of judgement."""

    key: str  # short, unique in a history, stable over nights: what ``python -m reports ack`` takes
    name: str  # readable: the record's series, and "/ torch" for a ratio
    record_series: str  # the ``series`` field of the performance records
    machine: str
    subject: str
    reference: str  # the subject that a ratio is over; empty for a time
    basis: Basis
    unit: str  # of a value: "ms per step", "ms per epoch", "ratio"
    axes: dict[str, Any]  # workload, backend, world …
    workload_hash: str
    hardware: str  # short hash of the hardware that it ran on
    same: bool  # a subject against itself: any change found here is false
    wrong: bool  # its latest results were wrong: there is no time, and there is an alarm
    lost: bool  # its latest run failed or hung, where earlier ones gave numbers: an alarm
    few_nights: bool  # it has too few nights to be judged by them alone
    doubtful: bool  # on the latest night it looks like a change, or odd: to be measured again before it is believed
    current: bool  # False if a later workload or hardware has taken its place
    points: tuple[Point, ...]  # one for each night of the machine since the series began, in order
    changes: tuple[Change, ...]  # in order of time
    # smallest slow-down found nine times of ten: within three nights; of one with few nights on the next one, beside
    # the code of an earlier night. None where that cannot be said yet
    detectable: float | None
    command: str  # how to measure it again; empty if not recorded

    @property
    def state(self) -> State:
        """The state on the latest night."""
        return self.points[-1].state if self.points else State.MISSING


class ClauseState(StrEnum):
    """What a night says of a clause (for one subject, backend and world)."""

    KEPT = "kept"
    LISTED = "listed"  # broken, and listed as a known deviation
    BROKEN = "broken"
    UNSTEADY = "unsteady"  # broken at first, kept when it was asked again in the same night
    UNSUPPORTED = "unsupported"
    NOT_RUN = "not run"
    ABSENT = "absent"  # the night holds no result of it


@dataclass(frozen=True)
class ClauseHistory:
    """A clause over the nights, for one subject, backend and world on one machine."""

    key: str  # "clause/subject/backend/world" as ``python -m reports ack`` takes it, after the machine's name
    machine: str
    clause: str
    title: str  # empty where the records do not say
    level: str
    area: str
    subject: str
    backend: str
    world: int
    nights: tuple[str, ...]  # Night.name, in order
    states: tuple[ClauseState, ...]  # one for each of the nights
    note: str  # of the acknowledgement of its present break; empty if there is none


@dataclass(frozen=True)
class ClauseChange:
    """A clause that was newly broken or newly kept, exact: no statistics."""

    history: str  # ClauseHistory.key
    machine: str
    clause: str
    subject: str
    backend: str
    world: int
    night: str
    before_night: str  # the last night that decided it before; empty if this is the first
    old: ClauseState
    new: ClauseState
    check: str  # the first check that broke it
    outcome: str  # failed, hung or crashed
    witness: str
    command: str  # how to repeat it
    old_commit: str
    new_commit: str
    note: str  # of the acknowledgement; empty if there is none
    alarms: bool  # broken on the latest night, and not acknowledged


@dataclass(frozen=True)
class Accounting:
    """How much was judged, and what that says about the judgement itself."""

    verdicts: int  # series x nights that were compared with something
    alarms: int  # regressions confirmed
    same_verdicts: int  # of those, of a subject against itself
    same_alarms: int  # each of these is false
    same_low: float  # interval of the false-alarm rate for each verdict, from those series, each counted as one
    same_high: float


@dataclass(frozen=True)
class JudgedHistory:
    """Everything a page needs."""

    folder: str  # the history folder
    judged: str  # the moment that counts as now, ISO 8601 UTC: what lies after it was left out as "future"
    parameters: Parameters
    machines: tuple[Machine, ...]
    series: tuple[Series, ...]
    clauses: tuple[ClauseHistory, ...]
    clause_changes: tuple[ClauseChange, ...]  # in order of time
    left_out: tuple[LeftOut, ...]
    accounting: Accounting

    @property
    def changes(self) -> tuple[Change, ...]:
        """All changes of all series, in order of the night on which they were found."""
        return tuple(sorted((c for s in self.series for c in s.changes), key=lambda change: change.found))

    @property
    def health(self) -> Health:
        """The worst answer of all machines still at work: a regression is worse than not knowing."""
        at_work = [machine for machine in self.machines if machine.silent < RETIRED] or self.machines
        found = {machine.health for machine in at_work} or {Health.UNJUDGED}
        return next(h for h in (Health.REGRESSED, Health.UNJUDGED, Health.HEALTHY) if h in found)
