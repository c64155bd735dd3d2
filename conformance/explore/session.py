"""Many programs on several workers: draws batch after batch until the time is over, records each, and sums up."""

from __future__ import annotations

import contextlib
import itertools
import queue
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from reports.records.lines import append, whole_lines

from ..ranks import Cluster
from ..subjects import resolve
from . import axes
from .axes import Feature
from .batch import Judge, judged
from .judging import FALLS_OVER, PATIENT_S, Failure, failure_of
from .offering import lacking
from .program import Program

RECORD = "explored.jsonl"
#: What our overlap hooks do from the first iteration on, torch's do later or not at all (HOOK-011, HOOK-012).
#: Where a buffer hook runs has no public name in torch, whose mixed precision and optimizers in the backward need an
#: accelerator.
OWN_AXES = ("overlapped", "overlap", "buffer hook", "lowered", "attached")


@dataclass(frozen=True)
class Asked:
    """One exploration."""

    subject: str
    seed: int
    seconds: float
    jobs: int
    out: Path
    first: bool = False  # ends with the first failure


@dataclass
class Cause:
    """Failures with one smallest program."""

    program: Program
    kind: str
    text: str
    evidence: str = ""
    times: int = 1


@dataclass
class Explored:
    """All that an exploration has met so far."""

    programs: int = 0
    seconds: float = 0.0  # of exploring, interruptions left out
    batches: set[int] = field(default_factory=set)
    features: Counter[Feature] = field(default_factory=Counter)
    pairs: Counter[tuple[Feature, Feature]] = field(default_factory=Counter)
    causes: list[Cause] = field(default_factory=list)
    partly: Counter[str] = field(default_factory=Counter)  # programs by the moment up to which all was compared

    def add(self, batch: dict[str, Any]) -> list[Cause]:
        """Take in the row of a batch; the causes that it found, as far as they are new."""
        self.batches.add(batch["batch"])
        self.seconds = max(self.seconds, batch["at"])
        self.programs += len(batch["met"])
        self.partly.update(batch.get("partly", {}))
        for met in batch["met"]:
            found = [(axis, value) for axis, value in met]
            self.features.update(found)
            self.pairs.update(axes.pairs(found))
        for place in batch["known"]:
            self.causes[place].times += 1
        return [cause for new in batch["new"] if (cause := self._caused(new)) is not None]

    def _caused(self, new: dict[str, Any]) -> Cause | None:
        program = Program.read(new["program"])
        again = next((cause for cause in self.causes if cause.program.features <= program.features), None)
        if again is not None:  # another worker was faster
            again.times += 1
            return None
        self.causes.append(Cause(program, new["kind"], new["text"], new["evidence"]))
        return self.causes[-1]

    def failures(self) -> int:
        return sum(cause.times for cause in self.causes)


def allowed_features(subject: str) -> list[Feature]:
    """What programs for this subject may choose."""
    ours = subject == "impl" or subject.startswith(("conformance.defects.", "conformance.power."))
    return [feature for feature in axes.FEATURES if ours or feature[0] not in OWN_AXES]


@cache
def drawn_features(subject: str) -> tuple[Feature, ...]:
    """What programs that are drawn for it choose: of those, what asks for nothing that it lacks."""
    made = {feature: axes.closed(dict([feature])) or {} for feature in allowed_features(subject)}
    return tuple(feature for feature, choices in made.items() if not lacking(Program(choices), resolve(subject)))


def explore(asked: Asked, say: Callable[[Explored, list[Cause]], None]) -> Explored:
    """Explore until the time is over, going on with an unfinished record of the same question in ``out``."""
    asked.out.mkdir(parents=True, exist_ok=True)
    path = asked.out / RECORD
    explored = _resumed(path, asked)
    start = time.monotonic() - explored.seconds
    with Workers(asked.jobs) as workers:
        for row in _rows(workers, asked, explored, start):
            row["at"] = round(time.monotonic() - start, 1)
            append(path, row)
            say(explored, explored.add(row))
        append(path, {"end": True, "programs": explored.programs})
    return explored


def _rows(workers: Workers, asked: Asked, explored: Explored, start: float) -> Iterator[dict[str, Any]]:
    """The rows of batches as they end; new ones begin while there is time."""
    following = max(explored.batches, default=-1) + 1
    running: set[Future[dict[str, Any]]] = set()
    while True:
        is_over = time.monotonic() - start >= asked.seconds or (asked.first and explored.causes)
        while len(running) < asked.jobs and not is_over:
            known = [cause.program.json() for cause in explored.causes]
            running.add(workers.submit(following, asked.seed, asked.subject, known))
            following += 1
        if not running:
            return
        done, running = wait(running, return_when=FIRST_COMPLETED)
        for each in done:
            yield each.result()


def _resumed(path: Path, asked: Asked) -> Explored:
    """What an unfinished record of the same question holds; else nothing, and a new one begins. No old one goes."""
    header = {"explore": 1, "subject": asked.subject, "seed": asked.seed}
    explored = Explored()
    rows = whole_lines(path)
    if rows and rows[0] == header and "end" not in rows[-1]:
        for row in rows[1:]:
            explored.add(row)
        return explored
    if path.exists():
        names = (path.with_name(f"{path.stem}-{number}{path.suffix}") for number in itertools.count(1))
        path.rename(next(name for name in names if not name.exists()))
    append(path, header)
    return explored


class Workers:
    """Threads that each judge one program at a time, on ranks of their own."""

    def __init__(self, jobs: int) -> None:
        self._stack = contextlib.ExitStack()
        self._idle: queue.SimpleQueue[tuple[Cluster, Cluster]] = queue.SimpleQueue()
        self._threads = ThreadPoolExecutor(jobs)
        first: Cluster | None = None
        for _ in range(jobs):  # of each pair, the ranks of one serve many programs, those of the other only one
            kept = Cluster(persistent=True, placing=False, preload=[f"{__package__}.judging"], base=first)
            fresh = Cluster(placing=False, base=kept)
            first = first or kept
            self._stack.callback(kept.close)
            self._stack.callback(fresh.close)
            self._idle.put((kept, fresh))

    def submit(self, number: int, seed: int, subject: str, known: Sequence[str]) -> Future[dict[str, Any]]:
        """Draw and judge a batch on the next idle ranks."""
        return self._threads.submit(self._batch, number, seed, subject, known)

    def _batch(self, number: int, seed: int, subject: str, known: Sequence[str]) -> dict[str, Any]:
        clusters = self._idle.get()
        try:
            partly: dict[str, str] = {}
            return batch_row(number, seed, subject, known, judge_of(subject, *clusters, partly), partly)
        finally:
            self._idle.put(clusters)

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        self._threads.shutdown(cancel_futures=True)
        self._stack.close()


def batch_row(
    number: int, seed: int, subject: str, known: Sequence[str], judge: Judge, partly: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """One batch as a row of the record; ``partly`` is what the judge has noted of programs."""
    causes = [Program.read(text).features for text in known]
    batch = judged(number, seed, judge, causes, drawn_features(subject))
    new = [
        {
            "program": failure.program.json(), "kind": failure.kind, "text": failure.first_line,
            "evidence": failure.evidence[-6000:], "drawn": program.json(),
        }
        for failure, program in batch.new
    ]  # fmt: skip
    return {
        "batch": number, "met": [sorted(met) for met in batch.met], "known": batch.known, "new": new,
        "seconds": round(batch.seconds, 1),
        "partly": Counter((partly or {})[text] for text in batch.drawn if text in (partly or {})),
    }  # fmt: skip


def judge_of(subject: str, kept: Cluster, fresh: Cluster, partly: dict[str, str] | None = None) -> Judge:
    """Judges on ranks that serve many programs; what fails there must fail on fresh ones, too.

    In ``partly`` it notes the moment from which on a program was not compared as a whole.
    """

    def judge(program: Program) -> Failure | None:
        moments: list[str] = []
        first = failure_of(program, kept, subject, partly=moments)
        if first is not None and first.kind != FALLS_OVER:
            first = failure_of(program, fresh, subject, PATIENT_S if first.kind == "hangs" else None, moments)
        if first is None and moments and partly is not None:
            partly[program.json()] = moments[-1]
        return first

    return judge
