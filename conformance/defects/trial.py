"""One defect against the clauses that it names: runs their checks, through pytest, until each clause is broken."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from ..api.checking import Check
from ..clauses import Catalogue, load
from ..engine import inventory, plugin
from ..engine.limits import NOT_A_LIMIT, within
from ..engine.request import WORLDS, Asked
from ..engine.run import SuiteRun
from ..engine.verdict import Verdict
from ..ranks import Cluster
from ..results import Case, Outcome, Result
from .catalogue import Defect
from .trial_result import Answer, TrialResult

_WITHOUT = ("-p", "no:unraisableexception", "-p", "no:threadexception")  # they collect garbage, for a second each time
# Planted code must not be wrong in a way that no program is.
_NOT_THE_SIN = re.compile(r"\b(NameError|UnboundLocalError|ImportError|ModuleNotFoundError|PlantError|Unpicklable)\b")


@dataclass
class Trial(SuiteRun):
    """A run of the suite on one defect, on a cluster that serves many, which ends when every clause is broken."""

    cluster: Cluster | None = None
    caught: dict[str, Result] = field(default_factory=dict)  # by clause

    def _cluster(self) -> Cluster:
        assert self.cluster is not None
        return self.cluster

    def may_look_again(self) -> bool:
        """Never: a collective trace explains a break, and here the break is expected."""
        return False

    def add(self, case: Case, check: Check, verdict: Verdict, seconds: float, notes: Sequence[str]) -> list[Result]:
        """Note which clauses a check has now broken; what is planted is held to the limits of the sound one."""
        verdict = within(verdict, notes, case, {case.subject: "impl"})
        made = super().add(case, check, verdict, seconds, notes)
        for result in made:
            if _is_caught(result):
                self.caught.setdefault(result.clause, result)
        return made

    def answer(self, clause: str) -> Answer:
        """What the checks of a clause had to say."""
        if clause in self.caught:
            result = self.caught[clause]
            return Answer(clause, True, _where(result.case), str(result.outcome), result.witness)
        met = [result for result in self.results if result.clause == clause]
        if not met:
            worlds = ", ".join(map(str, self.asked.worlds))
            return Answer(clause, False, witness=f"no check of it runs at world {worlds}")
        worst = next((result for result in met if result.broken), met[-1])
        return Answer(clause, False, _where(worst.case), str(worst.outcome), worst.witness)


def _is_caught(result: Result) -> bool:
    """Whether this shows the defect.

    A check that falls over on a rank of the planted implementation, and not on the sound one, fell over the defect; one
    that falls over in this process decides nothing.
    """
    if result.outcome in (Outcome.HUNG, Outcome.CRASHED):
        return True
    on_a_rank = result.detail.startswith("rank ")
    if result.outcome is Outcome.FAILED:
        by_a_check = on_a_rank or "\nat test_" in result.detail or NOT_A_LIMIT in result.witness
    else:
        by_a_check = on_a_rank and result.outcome is Outcome.SUITE_ERROR
    return by_a_check and not _NOT_THE_SIN.search(f"{result.witness}\n{result.detail}")


def _where(case: Case) -> str:
    return f"{case.check}[{case.scenario}]@{case.world}" if case.scenario else f"{case.check}@{case.world}"


class _Stops:
    """Leaves out the checks that can tell nothing: at other worlds than needed, or of clauses that are broken."""

    def __init__(self, trial: Trial, defect: Defect) -> None:
        self.trial, self.defect = trial, defect

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Without a word in the defect: each check at two ranks, or at as few as it has something to say about."""
        if self.defect.worlds:
            return
        worlds: dict[str, set[int]] = {}
        for item in items:
            worlds.setdefault(_name(item), set()).add(_world(item))
        chosen = {name: 2 if 2 in found else min(found) for name, found in worlds.items()}
        items[:] = [item for item in items if _world(item) == chosen[_name(item)]]

    def _clauses(self, item: pytest.Item) -> list[str]:
        return self.trial.wants(_name(item), item.function.check)  # type: ignore[attr-defined]

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        if all(clause in self.trial.caught for clause in self._clauses(item)):
            pytest.skip("its clauses are broken already")


def _name(item: pytest.Item) -> str:
    return getattr(item, "originalname", None) or item.name


def _world(item: pytest.Item) -> int:
    world: int = item.callspec.params["ranks"].world  # type: ignore[attr-defined]
    return world


class Collecting:
    """Finds the cases of a run, and runs none."""

    def __init__(self, trial: Trial) -> None:
        self._trial = trial
        self._found: list[pytest.Function] = []

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        self._found = [item for item in items if isinstance(item, pytest.Function)]

    def items(self, checks: Path) -> list[pytest.Function]:
        """The cases of the checks in a folder that were asked for."""
        plugin.Driver(self._trial).run([checks], checks, *_WITHOUT, "--collect-only", plugins=[self])
        if self._trial.suite_errors:
            raise RuntimeError(f"the suite itself failed: {self._trial.suite_errors[0]}")
        return self._found


@dataclass(frozen=True)
class Library:
    """What every trial reads, read once."""

    catalogue: Catalogue
    checks: Path  # the folder
    files: Mapping[str, frozenset[Path]]  # with checks of a clause

    @staticmethod
    def read(checks: Path) -> Library:
        cited = inventory.by_clause(inventory.declared(checks))
        files = {clause: frozenset(one.file for one in found) for clause, found in cited.items()}
        return Library(load(), checks, files)


def trial(defect: Defect, library: Library, cluster: Cluster) -> TrialResult:
    """Run the checks of the clauses that a defect names. It must be known to plant."""
    start = time.monotonic()
    asked = Asked({defect.id: defect.spec}, {defect.id: ""}, "gloo", defect.worlds or WORLDS, defect.clauses)
    suite_run = Trial(asked, library.catalogue, cluster=cluster)
    _run(suite_run, library, _Stops(suite_run, defect))
    trouble = _trouble(suite_run, library, cluster)
    answers = () if trouble else tuple(suite_run.answer(clause) for clause in defect.clauses)
    return TrialResult(defect.id, answers, time.monotonic() - start, trouble)


def _run(suite_run: Trial, library: Library, *plugins: object) -> None:
    """Run the checks of the clauses that a trial asks for."""
    files = sorted(frozenset().union(*(library.files.get(clause, frozenset()) for clause in suite_run.asked.select)))
    if files:
        status = plugin.Driver(suite_run).run(files, library.checks, *_WITHOUT, plugins=plugins)
        if status == pytest.ExitCode.INTERRUPTED and not suite_run.suite_errors:
            raise KeyboardInterrupt


def _trouble(suite_run: Trial, library: Library, cluster: Cluster) -> str:
    """Why a trial says nothing of its defect: the suite failed, or a check fell over that does so without it, too."""
    if suite_run.suite_errors:
        return f"the suite itself failed: {suite_run.suite_errors[0]}"
    for result in suite_run.caught.values():
        if result.outcome is Outcome.SUITE_ERROR and _falls_over_without(result, library, cluster):
            return f"{_where(result.case)} falls over without the defect, too"
    for result in suite_run.results:
        undecided = result.outcome is Outcome.SUITE_ERROR and not result.detail.startswith("rank ")
        if undecided and result.clause not in suite_run.caught:
            return f"{_where(result.case)}: {result.witness}"
    return ""


def _falls_over_without(result: Result, library: Library, cluster: Cluster) -> bool:
    """Whether a check that fell over on a planted defect does so on our implementation as it is."""
    case = result.case
    asked = Asked({"impl": "impl"}, {"impl": ""}, "gloo", (case.world,), (result.clause,), check=case.check)
    sound = Trial(asked, library.catalogue, cluster=cluster)
    _run(sound, library)
    return any(one.case.scenario == case.scenario and one.outcome is not Outcome.PASSED for one in sound.results)
