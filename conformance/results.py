"""What a run of the suite produces: for every clause, check, subject, backend and world, exactly one outcome."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any


class Outcome(StrEnum):
    """How a check ended on a subject. Only PASSED counts as kept."""

    PASSED = "passed"
    FAILED = "failed"
    HUNG = "hung"
    CRASHED = "crashed"
    UNSUPPORTED = "unsupported"
    NOT_RUN = "not run"
    SUITE_ERROR = "suite error"  # the check fell over by itself: says nothing about the subject


BEHIND = "    | "  # before each line of a stack or a log in a detail: records keep them, terminals do not show them
BROKEN = frozenset({Outcome.FAILED, Outcome.HUNG, Outcome.CRASHED})
DECIDED = BROKEN | {Outcome.PASSED}


@dataclass(frozen=True)
class Case:
    """One check on one subject, backend and world; what a resumed run would recognise."""

    check: str
    scenario: str  # empty for a check without scenarios
    subject: str
    backend: str
    world: int

    def __str__(self) -> str:
        name = f"{self.check}[{self.scenario}]" if self.scenario else self.check
        return f"{name} · {self.subject} · {self.backend} · world {self.world}"


@dataclass(frozen=True)
class Result:
    """The outcome of one case for one of the clauses that its check decides."""

    clause: str
    level: str  # empty for a clause that the catalogue does not hold
    case: Case
    outcome: Outcome
    seconds: float
    witness: str = ""  # one line: what was seen instead of what is promised, or why there is no answer
    detail: str = ""  # the rest: every rank's end, stacks, tracebacks
    notes: tuple[str, ...] = ()  # harmless documented weaknesses that the subject showed ("at its limit")
    deviation: str = ""  # reason of the listed deviation that expects this outcome; empty if there is none
    schedule: str = ""  # the smallest schedule that was found to break it: "0,1"; empty if none was looked for

    @property
    def broken(self) -> bool:
        return self.outcome in BROKEN

    @property
    def listed(self) -> bool:
        """Broken, and known to be."""
        return self.broken and bool(self.deviation)

    @property
    def unlisted(self) -> bool:
        """Broken, and news: this is what fails a run."""
        return self.broken and not self.deviation

    @property
    def at_limit(self) -> bool:
        return self.outcome is Outcome.PASSED and bool(self.notes)

    def excused(self, reason: str) -> Result:
        return replace(self, deviation=reason)

    def row(self) -> dict[str, Any]:
        """The result as a row of a record file."""
        return {
            "clause": self.clause, "level": self.level, "check": self.case.check, "scenario": self.case.scenario,
            "subject": self.case.subject, "backend": self.case.backend, "world": self.case.world,
            "outcome": str(self.outcome), "seconds": round(self.seconds, 4), "witness": self.witness,
            "detail": self.detail, "notes": list(self.notes), "deviation": self.deviation, "schedule": self.schedule,
        }  # fmt: skip
