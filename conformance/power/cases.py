"""The cases of the quick tier, collected once and run one at a time on whatever a cluster's ranks have loaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from ..clauses import load
from ..defects.trial import Collecting, Trial
from ..engine.items import Detached, case_of, is_simple
from ..engine.limits import within
from ..engine.parallel import timed
from ..engine.request import WORLDS, Asked
from ..engine.tiers import QUICK
from ..engine.verdict import Verdict, judge
from ..ranks import Cluster, ForkServerFailed
from ..ranks.origin import Sides
from ..results import BROKEN, Outcome

SUBJECT = "impl"
KILLING = BROKEN | {Outcome.SUITE_ERROR}  # a check that falls over on a mutant, and not on the sound code, noticed it


@dataclass(frozen=True)
class Ended:
    """How one case ended."""

    verdict: Verdict
    seconds: float

    @property
    def kills(self) -> bool:
        return self.verdict.outcome in KILLING


class Cases:
    """The items of the quick tier by name: ``check[scenario]@world``."""

    def __init__(self, items: Mapping[str, pytest.Function]) -> None:
        self._items = dict(items)
        self._catalogue = load()

    @staticmethod
    def collect(checks: Path) -> Cases:
        """Have pytest find them, as a run would choose them. What needs fixtures of pytest's own is left out."""
        items = Collecting(Trial(_asked(), load())).items(checks)
        return Cases({name_of(item): item for item in items if is_simple(item)})

    @property
    def names(self) -> list[str]:
        return list(self._items)

    def run(self, name: str, cluster: Cluster) -> Ended:
        """Run one case, to whatever end."""
        item = self._items[name]
        call = Detached(Trial(_asked(), self._catalogue, cluster=cluster), item)
        ending = timed(call)
        if isinstance(ending.error, ForkServerFailed):
            raise ending.error  # of this machine, and says nothing
        used = call.ranks
        sides = Sides.of(item.function, used.subject, used.subject_spec) if used is not None else None
        verdict = judge(ending.error, used.last_run if used is not None else None, sides)
        notes = used.notes if used is not None else ()
        return Ended(within(verdict, notes, case_of(item), {SUBJECT: SUBJECT}), ending.seconds)


def name_of(item: pytest.Function) -> str:
    """A case as people write it."""
    case = case_of(item)
    return f"{case.check}[{case.scenario}]@{case.world}" if case.scenario else f"{case.check}@{case.world}"


def _asked() -> Asked:
    return Asked({SUBJECT: SUBJECT}, {SUBJECT: ""}, "gloo", WORLDS, ("*",), tier=QUICK)
