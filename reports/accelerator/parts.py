"""The parts of a run in order of their value: what each proves, its command and its deadline."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from .facts import Facts
from .results import TARGETS

USUAL_MINUTES = 25.0  # what the limits below are made for
SHARED = ("nccl+multirank", "nccl+hostid")  # ways for ranks of NCCL to share a GPU, the better one first
_STAND_IN = "gloo"
_MOST_RANKS = 4  # where there are several GPUs
_MOST_JOBS = 8
_REHEARSED_S = 40.0  # for measuring; on a busy machine 15 s are over before the first cell is


@dataclass(frozen=True)
class Here:
    """Where and how the parts run."""

    facts: Facts
    out: Path  # of this question
    scale: float = 1.0  # of the deadlines: the time there is over the usual
    rehearsed: bool = False
    select: str = "*"  # clauses of the suites, for a short rehearsal
    shared: str = ""  # the way in which ranks of NCCL share a GPU here, once it is known; empty: none
    measured: Path | None = None  # the record of perf, once there is one

    @property
    def gpus(self) -> int:
        return len(self.facts.gpus)

    def folder(self, part: str) -> Path:
        return self.out / part

    def backend(self, name: str) -> str:
        """The backend itself, or what stands in for it in a rehearsal."""
        return _STAND_IN if self.rehearsed else name

    @property
    def pair(self) -> tuple[str, int]:
        """The best that two ranks of NCCL can have here, and how many ranks that is: 1 where they can have nothing."""
        if self.gpus > 1 or self.rehearsed:
            return self.backend("nccl"), 2
        return (self.shared, 2) if self.shared else ("nccl", 1)


@dataclass(frozen=True)
class Part:
    """One command of a run."""

    name: str
    proves: str  # what is proved if it ends well; for the paragraph
    limit_s: float
    command: Callable[[Here, float], list[str]]  # seconds that it has
    obstacle: Callable[[Here], str] = lambda _: ""  # why it cannot run here; empty if it can
    kind: str = "suite"  # how to read what it leaves: suite, findings, sanitized, perf, targets or said

    def deadline_s(self, here: Here) -> float:
        return self.limit_s * here.scale


def _suite(here: Here, part: str, backend: str, worlds: str, *more: str, subject: str = "impl") -> list[str]:
    jobs = max(1, min(_MOST_JOBS, (os.cpu_count() or 2) // 2))
    words = ["--subject", subject, "--backend", here.backend(backend), "--worlds", worlds, "--jobs", str(jobs)]
    select = () if "--select" in more else ("--select", here.select)
    resumed = ["--resume", "possible", "--out", str(here.folder(part))]
    return [sys.executable, "-m", "conformance", "run", *words, *select, *more, *resumed]


def _quick(here: Here, part: str, backend: str, worlds: str, *more: str, subject: str = "impl") -> list[str]:
    return _suite(here, part, backend, worlds, "--tier", "quick", *more, subject=subject)


def _findings(here: Here, part: str, name: str, backend: str, world: int, *more: str) -> list[str]:
    words = ["--backend", backend, "--world", str(world), "--out", str(here.folder(part) / "findings.json")]
    return [sys.executable, "-m", "conformance", "gpu", name, *words, *more]


def _sharing(here: Here, _: float) -> list[str]:
    ways = ",".join(SHARED) + (f",{_STAND_IN}" if here.rehearsed else "")
    return _findings(here, "sharing", "sharing", ways, 2)


def _perf(here: Here, part: str, sweep: str, world: int, budget_s: float) -> list[str]:
    words = ["--sweep", sweep, "--backend", here.backend("nccl"), "--world", str(world), "--judged", "no"]
    budget_s = _REHEARSED_S if here.rehearsed else 0.8 * budget_s
    budget = ["--budget", f"{max(5, round(budget_s))}s", "--out", str(here.folder(part))]
    return [sys.executable, "-m", "perf", "run", *words, *budget]


def _trace(here: Here, _: float) -> list[str]:
    words = ["--world", "1", "--backend", here.backend("nccl"), "--out", str(here.folder("trace"))]
    return [sys.executable, "-m", "perf", "trace", *words]


def _targets(here: Here, _: float) -> list[str]:
    record = str(here.measured or here.folder("perf"))
    return [sys.executable, "-m", "perf", "table", record, "--markdown", str(here.folder("targets") / TARGETS)]


def _sanitized(here: Here, _: float) -> list[str]:
    tool = [here.facts.sanitizer, "--tool", "memcheck", "--target-processes", "all", "--error-exitcode", "9"]
    tool += ["--report-api-errors", "no"]  # libraries probe for what a GPU cannot do; that is no bad access
    return [*tool, *_findings(here, "sanitizer", "streams", here.backend("nccl"), 1, "--only", "DDP")]


def _several(here: Here) -> str:
    only = "a rehearsal has a stand-in for one GPU only" if here.rehearsed else "there is one GPU only"
    return "" if here.gpus > 1 else only


def _two_ranks(here: Here) -> str:
    return "" if here.pair[1] > 1 else "NCCL has not let two ranks share the one GPU"


def _worlds(here: Here) -> str:
    return ",".join(map(str, range(2, min(_MOST_RANKS, here.gpus) + 1)))


PARTS = (
    Part(
        "start", "ranks start on the GPU, and the mean gradient is right on NCCL at one rank", 90,
        lambda here, _: _suite(here, "start", "nccl", "1", "--select", "DDP-049,JOIN-025,ZERO-022"),
    ),
    Part(
        "nccl-1", "the clauses hold on NCCL at one rank", 240,
        lambda here, _: _quick(here, "nccl-1", "nccl", "1"),
    ),
    Part(
        "gloo-cuda-2", "the clauses hold for tensors on the GPU at two ranks, over Gloo", 300,
        lambda here, _: _quick(here, "gloo-cuda-2", "gloo+cuda", "2"),
    ),
    Part(
        "sharing", "two ranks of NCCL can share a GPU, with workarounds that NVIDIA does not support", 120, _sharing,
        kind="findings",
    ),
    Part(
        "nccl-shared-2", "the clauses hold on NCCL at two ranks that share a GPU (correctness only)", 300,
        lambda here, _: _quick(here, "nccl-shared-2", here.shared or _STAND_IN, "2"),
        lambda here: "" if here.shared else "NCCL has not let two ranks share a GPU: see the part sharing",
    ),
    Part(
        "nccl-each", "the clauses hold on NCCL with a GPU for each rank", 300,
        lambda here, _: _quick(here, "nccl-each", "nccl", _worlds(here)), _several,
    ),
    Part(
        "streams", "whichever stream is late, the numbers stay the same", 240,
        lambda here, _: _findings(here, "streams", "streams", *here.pair), kind="findings",
    ),
    Part(
        "failures", "a rank that raises, dies or stays away is told of, and the others can go on", 240,
        lambda here, _: _findings(here, "failures", "failures", *here.pair), _two_ranks, kind="findings",
    ),
    Part(
        "perf", "steps were measured against torch's at one rank", 240,
        lambda here, limit_s: _perf(here, "perf", "gpu", 1, limit_s), kind="perf",
    ),
    Part(
        "perf-each", "steps were measured against torch's with a GPU for each rank", 240,
        lambda here, limit_s: _perf(here, "perf-each", "default", min(_MOST_RANKS, here.gpus), limit_s), _several,
        kind="perf",
    ),
    Part(
        "targets", "step, host time, launches and synchronisations at one rank are at most torch's", 60, _targets,
        lambda here: "" if here.measured else "there is no whole record of the part perf", kind="targets",
    ),
    Part(
        "memory", "nothing is left behind on the GPU, and peaks are beside torch's", 120,
        lambda here, _: _findings(here, "memory", "memory", here.backend("nccl"), 1), kind="findings",
    ),
    Part(
        "poison", "nobody reads a buffer between the start of a collective and its end", 240,
        lambda here, _: _quick(here, "poison", "gloo+cuda", "2", "--poison"),
    ),
    Part("trace", "an iteration on the GPU is on file as a timeline", 120, _trace, kind="said"),
    Part(
        "sanitizer", "compute-sanitizer finds no bad access to the GPU's memory", 180, _sanitized,
        lambda here: "" if here.facts.sanitizer else "compute-sanitizer is not installed", kind="sanitized",
    ),
    Part(
        "nccl-1-torch", "torch itself, on NCCL at one rank, breaks what is listed and no more", 240,
        lambda here, _: _quick(here, "nccl-1-torch", "nccl", "1", subject="torch"),
    ),
)  # fmt: skip
