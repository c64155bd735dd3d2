"""Stale deviations: entries of the list that the run proved wrong, because nothing breaks where they say so."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from ..results import Case, Outcome, Result
from . import Deviation

USUAL_WORLDS = frozenset({1, 2, 3, 4})  # what a full run covers: larger worlds are asked for by hand


@dataclass(frozen=True)
class Scope:
    """What a run covered. A deviation is judged only if all that it speaks of was covered."""

    clauses: Collection[str]  # every known clause id
    selected: Collection[str]  # those that were selected
    backend: str
    worlds: Collection[int]
    checks: Mapping[str, tuple[Collection[str], Collection[int]]]  # clauses and worlds of every check, by name
    torch_version: str
    left_out: Sequence[tuple[str, Case]] = field(default_factory=tuple)  # clauses and cases that a tier did not choose


def stale(deviations: Sequence[Deviation], results: Sequence[Result], scope: Scope) -> list[str]:
    """One sentence for each deviation of a subject that the results of that subject prove wrong."""
    faults = ((deviation, _fault(deviation, results, scope)) for deviation in deviations)
    return [f"{deviation.place} ({deviation}): {fault}" for deviation, fault in faults if fault]


def next_case(deviation: Deviation, results: Sequence[Result], scope: Scope) -> Case | None:
    """A case that was left out, and that has to be run before a deviation which has not shown can be called stale."""
    if not _in_scope(deviation, scope) or any(deviation.explains(result) for result in results):
        return None
    about = (case for clause, case in scope.left_out if deviation.concerns(clause, case))
    return min(about, key=lambda case: (case.world < 2, case.world), default=None)


def _fault(deviation: Deviation, results: Sequence[Result], scope: Scope) -> str | None:
    if not _ids(deviation, scope):
        return "there is no such clause; correct the id or take the entry out"
    if not _in_scope(deviation, scope):
        return None
    covered = [result for result in results if deviation.covers(result)]
    if any(deviation.explains(result) for result in covered):
        return None
    if any(deviation.concerns(clause, case) for clause, case in scope.left_out):
        return None  # it may show in what was left out
    if not covered:
        return "matches no check that was run; correct it or take it out"
    if any(result.outcome in (Outcome.NOT_RUN, Outcome.SUITE_ERROR) for result in covered):
        return None  # what was not run, or not to its end, may still break
    ends = Counter(_seen(deviation, result) for result in covered)
    seen = ", ".join(f"{count} {end}" for end, count in ends.items())
    return f"did not show: {seen}; take it out, or narrow it to where it still shows"


def _ids(deviation: Deviation, scope: Scope) -> set[str]:
    return {clause for clause in scope.clauses if fnmatchcase(clause, deviation.clause)}


def _in_scope(deviation: Deviation, scope: Scope) -> bool:
    """Whether the run asked for all that the deviation speaks of, where it is to show."""
    return (
        deviation.holds_for(scope.torch_version)
        and _ids(deviation, scope) <= set(scope.selected)
        and deviation.backend in ("", scope.backend)
        and _worlds(deviation, scope) <= set(scope.worlds)
    )


def _seen(deviation: Deviation, result: Result) -> str:
    """How a case ended that does not show the deviation."""
    alike = result.broken and deviation.outcome in ("any", str(result.outcome))
    return f"{result.outcome} with another witness" if alike else str(result.outcome)


def _worlds(deviation: Deviation, scope: Scope) -> set[int]:
    """The usual worlds in which it may show: of those that it names, or of the checks that it speaks of."""
    if deviation.worlds:
        return set(deviation.worlds) & USUAL_WORLDS or set(deviation.worlds)
    spoken_of = [
        worlds
        for name, (clauses, worlds) in scope.checks.items()
        if fnmatchcase(name, deviation.check) and any(fnmatchcase(clause, deviation.clause) for clause in clauses)
    ]
    return {world for worlds in spoken_of for world in worlds} & USUAL_WORLDS
