"""Two runs side by side: for every case, what it was in the first and is in the second."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from ..engine.judgement import Standing, standing
from ..results import Result
from .record_book import Source
from .rows import worlds

Key = tuple[str, str, str, str, str, int]  # clause, subject, backend, check, scenario, world


class Change(StrEnum):
    """What became of a case; a page shows them in this order."""

    BROKEN = "newly broken"
    KEPT = "newly kept"
    LISTED = "newly listed"
    SILENT = "no longer answered"
    NEW = "new"
    GONE = "gone"


@dataclass(frozen=True)
class Difference:
    """One check and scenario of a clause, at the worlds at which it changed in the same way."""

    change: Change
    clause: str
    title: str
    subject: str
    backend: str
    check: str
    scenario: str
    worlds: str
    before: str  # "passed"; empty if it was not there
    after: str
    witness: str  # of the second run, or of the first where there is no second
    again: str  # empty where the case is gone


@dataclass(frozen=True)
class Comparison:
    """Everything that differs between two runs."""

    first: Source
    second: Source
    differences: tuple[Difference, ...]
    same: int  # cases that are what they were

    def of(self, change: Change) -> list[Difference]:
        return [each for each in self.differences if each.change is change]

    @property
    def worse(self) -> bool:
        """Whether something is newly broken: this is what fails a comparison."""
        return bool(self.of(Change.BROKEN))

    @property
    def compares(self) -> bool:
        """Whether any case is in both runs."""
        return bool(self.same) or any(each.before and each.after for each in self.differences)


def compare(first: Source, second: Source) -> Comparison:
    """Case by case; a break that was not there before is newly broken, whether its check is new or not."""
    before, after = _keyed(first.results), _keyed(second.results)
    groups: dict[tuple[object, ...], list[Key]] = {}
    same = 0
    for key in dict.fromkeys([*after, *before]):
        change = _change(before.get(key), after.get(key))
        if change is None:
            same += 1
        else:
            alike = (change, key[:-1], _outcome(before.get(key)), _outcome(after.get(key)))
            groups.setdefault(alike, []).append(key)
    found = (_difference(keys, before, after, first, second) for keys in groups.values())
    order = list(Change)
    return Comparison(
        first, second, tuple(sorted(found, key=lambda each: (order.index(each.change), each.clause))), same
    )


def _keyed(found: Iterable[Result]) -> dict[Key, Result]:
    return {
        (each.clause, each.case.subject, each.case.backend, each.case.check, each.case.scenario, each.case.world): each
        for each in found
    }


def _change(before: Result | None, after: Result | None) -> Change | None:
    was = standing([before]) if before else None
    if after is None:
        return Change.GONE
    now = standing([after])
    if now is was:
        return None
    if now is Standing.UNLISTED:
        return Change.BROKEN
    if was is None:
        return Change.NEW
    return {Standing.KEPT: Change.KEPT, Standing.LISTED: Change.LISTED}.get(now, _silent(was))


def _silent(was: Standing) -> Change | None:
    """Between ways of having no answer nothing is lost."""
    return None if was in (Standing.UNSUPPORTED, Standing.NOT_RUN, Standing.SUITE_ERROR) else Change.SILENT


def _outcome(result: Result | None) -> str:
    if result is None:
        return ""
    return f"{result.outcome} (listed)" if result.listed else str(result.outcome)


def _difference(
    keys: Sequence[Key], before: dict[Key, Result], after: dict[Key, Result], first: Source, second: Source
) -> Difference:
    key = keys[0]
    there = [after[each] for each in keys if each in after]
    here = there or [before[each] for each in keys]
    catalogue = {**first.header.get("catalogue", {}), **second.header.get("catalogue", {})}
    return Difference(
        _must(_change(before.get(key), after.get(key))), key[0], str(catalogue.get(key[0], {}).get("title", "")),
        key[1], key[2], key[3], key[4], worlds(here), _outcome(before.get(key)), _outcome(after.get(key)),
        next((each.witness for each in here if each.witness), ""), second.again(there) if there else "",
    )  # fmt: skip


def _must(change: Change | None) -> Change:
    assert change is not None
    return change
