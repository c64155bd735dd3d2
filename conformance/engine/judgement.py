"""The judgement of a whole run: how each subject stands on each clause, and whether the run as a whole is in order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from ..results import DECIDED, Outcome, Result

OK, BROKEN, BAD_INPUT, INTERNAL, UNDECIDED, INTERRUPTED = 0, 1, 2, 3, 4, 130  # exit statuses


class Standing(StrEnum):
    """How a subject stands on a clause over all its checks, scenarios and worlds."""

    KEPT = "kept"
    LISTED = "broken (listed)"
    UNLISTED = "broken (not listed)"
    SUITE_ERROR = "suite error"
    UNSUPPORTED = "unsupported"
    NOT_RUN = "not run"


def standing(results: Sequence[Result]) -> Standing:
    """Any break outweighs any pass; a clause is kept only if something passed, and nothing was refused or fell over."""
    outcomes = {result.outcome for result in results}
    if any(result.unlisted for result in results):
        return Standing.UNLISTED
    if Outcome.SUITE_ERROR in outcomes:
        return Standing.SUITE_ERROR
    if any(result.listed for result in results):
        return Standing.LISTED
    if Outcome.UNSUPPORTED in outcomes:
        return Standing.UNSUPPORTED
    return Standing.KEPT if Outcome.PASSED in outcomes else Standing.NOT_RUN


@dataclass(frozen=True)
class Judgement:
    """Everything that the report and the exit status are made from."""

    subjects: tuple[str, ...]
    clauses: tuple[str, ...]  # selected and testable, in the order of the catalogue
    results: tuple[Result, ...]
    again: Callable[[Sequence[Result]], str]  # the command that runs these results' check again
    stale: tuple[str, ...] = ()  # a sentence for each deviation that no longer shows
    interrupted: bool = False
    extent: str = ""  # how much of what could be run was run
    part: Mapping[str, Sequence[str]] = field(default_factory=dict)  # by subject, clauses with scenarios not run

    def of(self, clause: str, subject: str) -> list[Result]:
        return [result for result in self.results if result.clause == clause and result.case.subject == subject]

    def is_in_part(self, clause: str, subject: str) -> bool:
        """Whether scenarios of the clause were left out."""
        return clause in self.part.get(subject, ())

    def standings(self, subject: str) -> dict[str, Standing]:
        """How the subject stands on every selected clause; one without any result was not run."""
        grouped: dict[str, list[Result]] = {clause: [] for clause in self.clauses}
        for result in self.results:
            if result.case.subject == subject:
                grouped.setdefault(result.clause, []).append(result)
        return {clause: standing(results) for clause, results in grouped.items()}

    def at_limit(self, subject: str) -> int:
        """Clauses that the subject keeps by a harmless documented weakness."""
        kept = {clause for clause, how in self.standings(subject).items() if how is Standing.KEPT}
        return len(kept & {r.clause for r in self.results if r.case.subject == subject and r.at_limit})

    @property
    def unlisted(self) -> list[Result]:
        return [result for result in self.results if result.unlisted]

    @property
    def listed(self) -> list[Result]:
        return [result for result in self.results if result.listed]

    @property
    def fallen(self) -> list[Result]:
        """Checks that fell over by themselves."""
        return [result for result in self.results if result.outcome is Outcome.SUITE_ERROR]

    @property
    def decided(self) -> bool:
        """Whether any clause got an answer; unsupported and not run are none."""
        return any(result.outcome in DECIDED for result in self.results)

    @property
    def exit_status(self) -> int:
        """What outweighs what: of a run that was cut short, or of checks that fell over, the rest is not the answer."""
        if self.interrupted:
            return INTERRUPTED
        if self.fallen:
            return INTERNAL
        if self.unlisted or self.stale:
            return BROKEN
        return OK if self.decided else UNDECIDED

    def counts(self) -> Mapping[str, Mapping[str, int]]:
        """For each subject: its results by outcome, and its clauses by standing."""
        return {
            subject: {
                **Counter(str(result.outcome) for result in self.results if result.case.subject == subject),
                **{f"clauses {name}": n for name, n in Counter(map(str, self.standings(subject).values())).items()},
            }
            for subject in self.subjects
        }
