"""What the header of a record says about the suite, so that a reader of the record need not have it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..clauses import Catalogue, Clause
from ..deviations import Deviation


def about(catalogue: Catalogue, deviations: Mapping[str, Sequence[Deviation]], checks: str) -> dict[str, Any]:
    """Fields for the header: the catalogue in short, the listed deviations, and whose checks were run."""
    return {
        "areas": {area.letter: area.title for area in catalogue.areas},
        "catalogue": {clause.id: _short(clause) for clause in catalogue},
        "deviations": {name: [entry(each) for each in listed] for name, listed in deviations.items()},
        "checks": checks,
    }


def _short(clause: Clause) -> dict[str, Any]:
    fields = {"title": clause.title, "level": clause.level, "error": clause.error, "area": clause.area}
    return {**fields, "untestable": clause.reason} if not clause.testable else fields


def entry(deviation: Deviation) -> dict[str, str]:
    """A listed deviation, as the page of a record shows it."""
    return {"clause": deviation.clause, "reason": deviation.reason, "link": deviation.link, "place": deviation.place}
