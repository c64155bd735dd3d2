"""A case of the suite as pytest holds it: a test function with its parameters, run by pytest or by a thread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from ..api.checking import Check, Ranks
from ..results import Case
from .parallel import timed
from .run import SuiteRun
from .schedule_search import Schedules
from .tiers import Offer


@dataclass(frozen=True)
class Place:
    """Where a check is run: the parameter of the fixture ``ranks``."""

    subject: str
    backend: str
    world: int

    def __str__(self) -> str:
        return f"{self.subject}-{self.backend}-{self.world}"


@dataclass(frozen=True)
class Scenario:
    """The parameter of the fixture ``scenario``."""

    name: str
    value: Any


def is_in(suite_run: SuiteRun, item: pytest.Function) -> bool:
    """Whether an item is a case of what was asked for."""
    check: Check | None = getattr(item.function, "check", None)
    place, scenario = parameter(item, "ranks"), parameter(item, "scenario")
    if check is None or not isinstance(place, Place) or not suite_run.wants(name_of(item), check):
        return False
    if suite_run.asked.schedule is not None and "schedules" not in item.fixturenames:
        return False
    return scenario is None or check.fits(scenario.value, place.world)


def offer_of(suite_run: SuiteRun, item: pytest.Function) -> Offer:
    check = check_of(item)
    return Offer(case_of(item), tuple(suite_run.wants(name_of(item), check)), item.path.name, check.each)


def check_of(item: pytest.Function) -> Check:
    check: Check = item.function.check
    return check


def case_of(item: pytest.Function) -> Case:
    place: Place = parameter(item, "ranks")
    scenario = parameter(item, "scenario")
    return Case(name_of(item), scenario.name if scenario else "", place.subject, place.backend, place.world)


def name_of(item: pytest.Function) -> str:
    return item.originalname or item.name


def parameter(item: pytest.Function, name: str) -> Any:
    callspec = getattr(item, "callspec", None)
    return callspec.params.get(name) if callspec is not None else None


def is_simple(item: pytest.Function) -> bool:
    """Whether a check needs nothing of pytest but our own fixtures, so that a thread can run it."""
    marked = any(True for _ in item.iter_markers())
    return set(item.fixturenames) <= {"ranks", "scenario", "schedules", "request"} and not marked and item.cls is None


class Detached:
    """A check that is called outside of pytest's protocol, by a thread."""

    def __init__(
        self,
        suite_run: SuiteRun,
        item: pytest.Function,
        always_trace: bool = False,
        below: Sequence[tuple[int, ...]] = (),
    ) -> None:
        self.suite_run, self.item, self.always_trace = suite_run, item, always_trace
        self.below = below  # schedules below which to search for the smallest that breaks
        self.place: Place = parameter(item, "ranks")
        again = always_trace or bool(below)
        self.may_reuse = not again and suite_run.may_reuse(case_of(item), check_of(item))
        self.ranks: Ranks | None = None  # set when it starts
        self.schedules: Schedules | None = None  # likewise, for a check that takes them

    def __call__(self) -> None:
        if not self.may_reuse or timed(lambda: self._call(reuse=True)).error is not None:
            self._call(reuse=False)

    def _call(self, reuse: bool) -> None:
        self.ranks = self.suite_run.ranks(check_of(self.item), self.place.subject, self.place.world)
        self.ranks.always_trace, self.ranks.reuse = self.always_trace, reuse
        arguments: dict[str, Any] = {"ranks": self.ranks}
        if "scenario" in self.item.fixturenames:
            arguments["scenario"] = parameter(self.item, "scenario").value
        if "schedules" in self.item.fixturenames:
            self.schedules = Schedules(self.place.world, self.suite_run.asked.schedule, self.below)
            arguments["schedules"] = self.schedules
        called(self.item, self.ranks, arguments)


def called(item: pytest.Function, ranks: Ranks, arguments: dict[str, Any]) -> None:
    """Run a check, if the subject has what its clauses are about."""
    check_of(item).ask_for_names(ranks.subject)
    item.obj(**arguments)
