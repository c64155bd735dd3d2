"""One run of the suite: what was asked, the clusters it uses, the results so far, where they are written."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Protocol

import torch

from reports.records import Writer

from ..api.checking import Check, Ranks
from ..clauses import Catalogue, matches
from ..deviations import Deviation, excuse
from ..deviations.stale import Scope, next_case, stale
from ..ranks import Cluster
from ..results import Case, Outcome, Result
from ..subjects import module_of
from .judgement import Judgement
from .limits import within
from .parallel import Turns
from .request import Asked
from .resume import Earlier, Ended
from .tiers import QUICK, Offer, choose, in_part
from .verdict import Verdict

LOOKS_AGAIN = 8
DEADLINE_S = 30.0  # for one run of ranks, where nobody says another
WAITING = 8  # so many checks besides, whose ranks only wait
WRITTEN_FOR = 4  # ranks: the most for which checks choose their deadlines


class Reporter(Protocol):
    """Somebody who is told what happens."""

    def begin(self, total: int) -> None: ...

    def finished(self, case: Case, results: Sequence[Result]) -> None: ...

    def end(self) -> None: ...


class Silent:
    """The reporter of a run that something else reports (pytest's own terminal)."""

    def begin(self, total: int) -> None:
        """Say nothing."""

    def finished(self, case: Case, results: Sequence[Result]) -> None:
        """Say nothing."""

    def end(self) -> None:
        """Say nothing."""


@dataclass
class SuiteRun:
    """Collects the results of a run and judges it at the end."""

    asked: Asked
    catalogue: Catalogue
    whole: bool = False  # every check of the selected clauses is in the run: only then can deviations be called stale
    reporter: Reporter = field(default_factory=Silent)
    writer: Writer | None = None  # opened when the first check is about to run
    results: list[Result] = field(default_factory=list)
    elsewhere: Sequence[str] = ()  # clauses that are cited in files of checks which need not be in the run
    declared: dict[str, Check] = field(default_factory=dict)  # every check by name, in the run or not
    left_out: list[Offer] = field(default_factory=list)  # cases that the tier did not choose
    earlier: Earlier = field(default_factory=Earlier)  # what an unfinished run had finished: not run again
    suite_errors: list[str] = field(default_factory=list)  # checks that could not be read, or did not clean up
    settled: int = 0  # cases that were run besides, for listed deviations that had not shown
    extent: str = ""  # how much of what could be run the tier chose, in words
    judgement: Judgement | None = None  # set once, at the end
    clusters: Callable[..., Cluster] = Cluster  # makes one; under a launcher another kind
    turns: Turns = field(init=False)
    _preload: tuple[str, ...] = ()  # modules that every rank will want
    _looks: int = LOOKS_AGAIN  # how many more breaks are looked at twice
    _clusters: list[Cluster] = field(default_factory=list)
    _mine: threading.local = field(default_factory=threading.local)  # each thread its own cluster

    def __post_init__(self) -> None:
        self.turns = Turns(self.asked.jobs)

    def wants(self, name: str, check: Check) -> list[str]:
        """The clauses for which a check is in the run; none if it is not."""
        if not fnmatchcase(name, self.asked.check):
            return []
        return [clause for clause in check.clauses if matches(clause, self.asked.select)]

    def choose(self, offers: Sequence[Offer]) -> set[Case]:
        """Which of all possible cases the tier makes; remembers what it leaves out."""
        listed = {subject: self._listed(subject) for subject in self.asked.subjects}
        chosen = choose(self.asked.tier, offers, listed)
        self.left_out = [offer for offer in offers if offer.case not in chosen]
        poisoned = ", buffers in flight poisoned" if self.asked.poison else ""
        self.extent = _extent(self.asked.tier, len(chosen), len(offers)) + poisoned
        return chosen

    def unsettled(self) -> Iterator[Case]:
        """One by one, and to be run as they come: cases that the tier left out and that may yet show a deviation.

        For a listed deviation that has not shown; once it has, or nothing is left that it speaks of, the next one.
        """
        for subject, listed in self.asked.deviations.items() if self.whole else ():
            for deviation in listed:
                while (case := next_case(deviation, self._of(subject), self._scope(subject))) is not None:
                    self.left_out = [offer for offer in self.left_out if offer.case != case]
                    self.settled += 1
                    yield case

    def ended(self, case: Case, check: Check) -> Ended | None:
        """How an earlier, unfinished run of the same question saw this case end; None if it did not."""
        return self.earlier.get(case, self.wants(case.check, check))

    def ranks(self, check: Check, subject: str, world: int) -> Ranks:
        """The fixture of one case, on the cluster of the calling thread."""
        limit_s = check.deadline_s or self.asked.deadline_s or DEADLINE_S
        slower = max(1.0, world / WRITTEN_FOR) ** 2  # more ranks share the same cores, and wait for each other
        return Ranks(self._cluster(), self.asked.subjects[subject], self.asked.backend, world, limit_s * slower)

    def may_reuse(self, case: Case, check: Check) -> bool:
        """Whether ranks that other checks have passed on may serve this one first.

        In the quick tier, for quickness. What does not pass on them is run on fresh ranks, and only that counts. It
        would only cost time where a listed deviation makes a break likely.
        """
        return self.asked.tier == QUICK and not self.asked.poison and not self.may_break(case, check)

    def may_break(self, case: Case, check: Check) -> bool:
        """Whether a listed deviation is about this case."""
        return any(each.concerns(name, case) for each in self._listed(case.subject) for name in check.clauses)

    def _cluster(self) -> Cluster:
        if not hasattr(self._mine, "cluster"):
            options: dict[str, Any] = {"deadline_s": self.asked.deadline_s} if self.asked.deadline_s else {}
            options |= {"poison": True} if self.asked.poison else {}
            if self.asked.jobs > 1:
                options |= {"when_idle": self.turns.lend, "base": self._clusters[0] if self._clusters else None}
            self._mine.cluster = self.clusters(self.asked.backend, preload=self._preload, **options)
            self._clusters.append(self._mine.cluster)
        cluster: Cluster = self._mine.cluster
        return cluster

    def prepare(self, modules: Sequence[str]) -> None:
        """Before the first check: start loading what the ranks will need, in the background. Once is enough."""
        if self._preload:
            return
        torch.set_num_threads(1)  # of this process: more would spin on cores that the ranks have
        subjects = {module_of(subject) for subject in self.asked.subjects.values()}
        self._preload = (*modules, *sorted(subjects))
        self._cluster().load()

    def expects(self, case: Case, check: Check, verdict: Verdict) -> bool:
        """Whether a break is a listed deviation for every clause of the check."""
        return all(result.listed for result in self._judged(case, check, verdict, 0.0, ()))

    def may_look_again(self) -> bool:
        """Whether one more break may be run a second time: a subject that hangs everywhere must not take for ever."""
        self._looks -= 1
        return self._looks >= 0

    def add(self, case: Case, check: Check, verdict: Verdict, seconds: float, notes: Sequence[str]) -> list[Result]:
        """Note how a case ended: one result for each of its selected clauses."""
        made = self._judged(case, check, verdict, seconds, notes)
        self.results += made
        if self.writer is not None:
            for result in made:
                self.writer.write(result.row())
        self.reporter.finished(case, made)
        return made

    def _judged(
        self, case: Case, check: Check, verdict: Verdict, seconds: float, notes: Sequence[str]
    ) -> list[Result]:
        verdict = within(verdict, notes, case, self.asked.subjects)
        limits = tuple(dict.fromkeys(notes)) if verdict.outcome is Outcome.PASSED else ()
        listed = self._listed(case.subject)
        ending = (verdict.outcome, seconds, verdict.witness, verdict.detail, limits, "", verdict.schedule)
        return [
            excuse(Result(clause, self.catalogue.level(clause), case, *ending), listed)
            for clause in self.wants(case.check, check)
        ]

    def _listed(self, subject: str) -> list[Deviation]:
        """The known deviations of a subject under this version of torch."""
        return [each for each in self.asked.deviations.get(subject, ()) if each.holds_for(self.torch_version)]

    @property
    def torch_version(self) -> str:
        return str(torch.__version__)

    def end(self, interrupted: bool) -> Judgement:
        """Judge, write the footer, end the clusters."""
        judged = Judgement(
            tuple(self.asked.subjects), tuple(self._clauses()), tuple(self.results), self.asked.again_for,
            () if interrupted or not self.whole else tuple(self._stale()), interrupted, self._told_extent(interrupted),
            in_part(self.left_out, [result.case for result in self.results]),
        )  # fmt: skip
        self.judgement = judged
        if self.writer is not None:
            footer = {
                "counts": judged.counts(), "stale": list(judged.stale), "exit_status": judged.exit_status,
                "clauses": list(judged.clauses), "part": judged.part,
            }  # fmt: skip
            self.writer.close(footer, interrupted=interrupted)
        self.close()
        return judged

    def close(self) -> None:
        """End the clusters; harmless a second time."""
        while self._clusters:
            self._clusters.pop().close()

    @property
    def cited(self) -> list[str]:
        """Every clause that some check cites."""
        here = [clause for check in self.declared.values() for clause in check.clauses]
        return list(dict.fromkeys([*self.elsewhere, *here]))

    def known(self) -> list[str]:
        """Every clause id of the catalogue, then those that only checks cite."""
        return list(dict.fromkeys([*(clause.id for clause in self.catalogue), *self.cited]))

    def _clauses(self) -> list[str]:
        """The clauses that the judgement is about: selected and testable.

        Of a part of the suite: those with a result. Of checks from elsewhere: those that they cite.
        """
        known = self.cited if self.asked.checks else self.known()
        selected = [clause for clause in known if matches(clause, self.asked.select)]
        if not self.whole:
            seen = {result.clause for result in self.results}
            return [clause for clause in selected if clause in seen]
        untestable = {clause.id for clause in self.catalogue if not clause.testable}
        return [clause for clause in selected if clause not in untestable]

    def _stale(self) -> list[str]:
        return [
            f"{name}: {sentence}"
            for name, listed in self.asked.deviations.items()
            for sentence in stale(listed, self._of(name), self._scope(name))
        ]

    def _of(self, subject: str) -> list[Result]:
        return [result for result in self.results if result.case.subject == subject]

    def _told_extent(self, interrupted: bool) -> str:
        more = f", and {self.settled} more for listed deviations that had not shown" if self.settled else ""
        finished = len({result.case for result in self.results})
        ended = f"; {finished} {'was' if finished == 1 else 'were'} finished" if interrupted and self.extent else ""
        return self.extent + more + ended

    def _scope(self, subject: str) -> Scope:
        known = self.known()
        return Scope(
            known, [clause for clause in known if matches(clause, self.asked.select)], self.asked.backend,
            self.asked.worlds, {name: (check.clauses, check.worlds) for name, check in self.declared.items()},
            self.torch_version,
            [(each, left.case) for left in self.left_out if left.case.subject == subject for each in left.clauses],
        )  # fmt: skip


def _extent(tier: str, chosen: int, offered: int) -> str:
    """In words: which tier, and how many cases of how many."""
    name = f"{tier} tier: " if tier else ""
    return f"{name}{chosen} of {offered} cases" if chosen < offered else f"{name}all {offered} cases"
