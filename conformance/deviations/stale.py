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


def _fault(deviation: Deviation, results: Sequence[Result], scope: Scope) -> str | None:
    ids = [clause for clause in scope.clauses if fnmatchcase(clause, deviation.clause)]
    if not ids:
        return "there is no such clause; correct the id or take the entry out"
    if not deviation.holds_for(scope.torch_version) or not set(ids) <= set(scope.selected):
        return None
    if deviation.backend not in ("", scope.backend):
        return None
    if not _worlds(deviation, scope) <= set(scope.worlds):
        return None
    covered = [result for result in results if deviation.covers(result)]
    if any(deviation.explains(result) for result in covered):
        return None
    if any(deviation.concerns(clause, case) for clause, case in scope.left_out):
        return None  # it may show in what this tier leaves out
    if not covered:
        return "matches no check that was run; correct it or take it out"
    if any(result.outcome is Outcome.NOT_RUN for result in covered):
        return None  # what was not run may still break
    ends = Counter(str(result.outcome) for result in covered)
    seen = ", ".join(f"{count} {outcome}" for outcome, count in ends.items())
    return f"did not show: {seen}; take it out, or narrow it to where it still shows"


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
