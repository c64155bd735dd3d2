"""How far a subject may fall short where a clause allows it: as its list of deviations says, and no farther.

A check may pass "at its limit", or find that the subject lacks what it needs. Neither is a break, and both can hide
one: what was kept in full yesterday is kept at a limit today. For a subject whose list has ``limits``, any other is a
break. They speak of Gloo, where all of them have been seen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

from .. import deviations
from ..results import Case, Outcome
from ..subjects import BEYOND
from .verdict import Verdict

NOT_A_LIMIT = "falls short in a way that is not among its limits"


@cache
def _of(spec: str) -> frozenset[str] | None:
    path = deviations.HERE / f"{spec}.toml"
    limits = deviations.load(path).limits if path.is_file() else None
    return None if limits is None else frozenset(limits)


def within(verdict: Verdict, notes: Sequence[str], case: Case, subjects: Mapping[str, str]) -> Verdict:
    """The verdict, or a failure where a subject (name and spec) falls short in a way that its list does not name."""
    limits = _of(subjects[case.subject]) if case.backend == "gloo" else None
    if limits is None:
        return verdict
    lacks = verdict.outcome is Outcome.UNSUPPORTED or verdict.witness.endswith(BEYOND)
    said = tuple(notes) if verdict.outcome is Outcome.PASSED else (verdict.witness,) if lacks else ()
    unlisted = [text for text in said if text not in limits]
    if not unlisted:
        return verdict
    return Verdict(Outcome.FAILED, f"{case.subject} {NOT_A_LIMIT}: {unlisted[0]}")

