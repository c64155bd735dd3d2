"""Hours in minutes: random programs under slow ranks and pauses, and whether anything grows over thousands of turns."""

from __future__ import annotations

import gc
import os
import random
import resource
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..explore import drawing
from ..explore.judging import Failure, judged
from ..explore.program import Program
from ..explore.session import drawn_features
from ..fixtures import models, overlapping
from ..ranks import Cluster, RankContext, Run

WORLD = 2
NEEDED = ("DistributedDataParallel", "ZeroRedundancyOptimizer", "Join", "default_hooks")  # of a subject
_PATIENT_S = 30.0  # without progress: ranks are stopped on purpose
_DEADLINE_S = 120.0
_KEYS_OF_OURS = 4  # that two meetings leave in the store
_SHARE = 20  # of the turns, the first such part is a warm-up and is not compared with …
_WARM_UP = 8  # … and at least so many turns
_A_TURN = 4  # iterations in a turn, at the least
#: with fewer there would be nothing after the warm-up
LEAST_ITERATIONS, LEAST_CONSTRUCTIONS = _A_TURN * (_WARM_UP + 1), _WARM_UP + 1
_LOOKS, _NAP_S = 4, 0.1  # the least counts


# -- disturbing


def _disturbing(seed: int, rank: int, pid: int) -> str:
    """A shell script that stops a process now and then, for moments or for a while, until it is gone."""
    draw = random.Random(seed * 97 + rank)
    turns = [(draw.choice((0.002, 0.01, 0.05)), draw.choice((0.005, 0.02, 0.1, 0.4))) for _ in range(6)]
    body = "".join(
        f"kill -STOP {pid} || exit; sleep {stop}; kill -CONT {pid} || exit; sleep {go}; " for stop, go in turns
    )
    return f"while :; do {body}done 2>/dev/null"


def disturbed(ctx: RankContext, seed: int, function: Callable[..., Any], args: Sequence[Any]) -> Any:
    """Rank function: ``function`` while this rank is stopped and woken again and again."""
    script = _disturbing(seed, ctx.rank, os.getpid())
    stopping = subprocess.Popen(["sh", "-c", script], stderr=subprocess.DEVNULL)
    try:
        return function(ctx, *args)
    finally:  # another process ends it and wakes this one: the last thing that it did may have been to stop this one
        subprocess.run(["sh", "-c", f"kill -KILL {stopping.pid}; kill -CONT {os.getpid()}"], check=True)
        stopping.wait()


class DisturbedCluster(Cluster):
    """Disturbs every run, each in another way, while ``disturbs`` is true."""

    disturbs = True
    turn = 0

    def run(self, function: Callable[..., Any], args: Sequence[Any] = (), **options: Any) -> Run:
        if not self.disturbs:
            return super().run(function, args, **options)
        self.turn += 1
        return super().run(disturbed, (self.turn, function, args), **options)


# -- programs


def programs(
    subject: str, seed: int, seconds: float, jobs: int, say: Callable[[int, Failure | None], None]
) -> tuple[int, list[Failure]]:
    """Judge random programs on disturbed ranks for so long; how many, and what failed."""
    failures: list[Failure] = []
    drawn, lock, end, over = _drawn(subject, seed), threading.Lock(), time.monotonic() + seconds, threading.Event()
    count = 0

    def work(cluster: DisturbedCluster) -> None:
        nonlocal count
        while time.monotonic() < end and not over.is_set():
            with lock:
                program = next(drawn)
            failure = _judged(program, cluster, subject)
            with lock:
                count += 1
                failures.extend([failure] if failure is not None else [])
                say(count, failure)

    clusters, threads = _clusters(jobs), ThreadPoolExecutor(jobs)
    try:
        for done in as_completed([threads.submit(work, cluster) for cluster in clusters]):
            done.result()  # raises what has ended a thread
    finally:
        over.set()
        for cluster in reversed(clusters):
            cluster.close()
        threads.shutdown()
    return count, failures


def _judged(program: Program, cluster: DisturbedCluster, subject: str) -> Failure | None:
    """What is wrong with a program on disturbed ranks; the text says whether it is wrong on others, too."""
    failure = judged(program, cluster, subject, _PATIENT_S)
    if failure is None:
        return None
    cluster.disturbs = False
    try:
        again = judged(program, cluster, subject, _PATIENT_S)
    finally:
        cluster.disturbs = True
    where = "only on disturbed ranks" if again is None else "on undisturbed ranks, too"
    return replace(failure, text=f"{failure.first_line} ({where})")


def _drawn(subject: str, seed: int) -> Iterator[Program]:
    """Programs without end; the same seed draws the same ones."""
    allowed = drawn_features(subject)
    while True:
        yield from (program for world in (2, 3) for program in drawing.sample(seed + world, 10, allowed, world))
        seed += 10


def _clusters(jobs: int) -> list[DisturbedCluster]:
    clusters: list[DisturbedCluster] = []
    for _ in range(jobs):
        clusters.append(DisturbedCluster(
            placing=False, persistent=True, deadline_s=_DEADLINE_S, preload=["conformance.faults.soak"],
            base=clusters[0] if clusters else None,
        ))  # fmt: skip
    return clusters


# -- growth

Figures = dict[str, float]


@dataclass(frozen=True)
class Grown:
    """What one rank held after the warm-up and at the end."""

    what: str
    first: Figures
    last: Figures

    def growing(self, most: Mapping[str, float]) -> list[str]:
        """The names of what has grown by more than is allowed."""
        return [name for name, value in self.last.items() if value - self.first[name] > most[name]]


#: by how much each may be more at the end: numbers by nothing; memory by what an allocator may keep back
MOST: dict[str, float] = {
    "memory_mib": 24.0, "tensors": 0, "descriptors": 0, "threads": 0, "processes": 0, "store_keys": 0,
}  # fmt: skip


def figures(ctx: RankContext) -> Figures:
    """What this process holds for good: a thread of the backend's may let go of a tensor a moment late."""
    looks = [_held(ctx)]
    while len(looks) < _LOOKS:
        time.sleep(_NAP_S)
        looks.append(_held(ctx))
    return {name: min(look[name] for look in looks) for name in looks[0]}


def _held(ctx: RankContext) -> Figures:
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    tensors = sum(issubclass(type(each), torch.Tensor) for each in gc.get_objects())
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return {
        "memory_mib": round(pages * resource.getpagesize() / 2**20, 1),
        "tensors": tensors,
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": len(os.listdir("/proc/self/task")),
        "processes": len(children),
        "store_keys": ctx.store.num_keys(),
    }


def iterate(ctx: RankContext, turns: int) -> list[Grown]:
    """Rank function: one model, so many iterations in contexts of uneven length, and what has grown meanwhile."""
    model = ctx.subject.DistributedDataParallel(_net(), bucket_cap_mb=overlapping.CAP_MIB)
    zero = ctx.subject.ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=2**-12, momentum=0.5)

    def turn(number: int) -> None:
        with ctx.subject.Join([model, zero]):
            for _ in range(_A_TURN + (number + ctx.rank) % 2):
                model.zero_grad(set_to_none=True)
                model(models.integers(2, 4, seed=ctx.rank)).sum().backward()
                zero.step()

    return [_watched(ctx, "iterations", turns // _A_TURN, turn)]


def construct(ctx: RankContext, turns: int) -> list[Grown]:
    """Rank function: so many models, optimizers, hooks and contexts are built, used once and dropped."""
    kinds = [_plain, _sharded, _hooked, _overlapped]

    def turn(number: int) -> None:
        kinds[number % len(kinds)](ctx)

    return [_watched(ctx, "constructions", turns, turn)]


def _watched(ctx: RankContext, what: str, turns: int, turn: Callable[[int], None]) -> Grown:
    first: Figures = {}
    for number in range(turns):
        if number == max(_WARM_UP, turns // _SHARE):
            ctx.meet(f"{what}, first")
            first = figures(ctx)
            ctx.meet(f"{what}, seen")
        turn(number)
    ctx.meet(f"{what}, over")
    last = figures(ctx)
    return Grown(what, first, {**last, "store_keys": last["store_keys"] - _KEYS_OF_OURS})


def _net() -> nn.Module:
    return models.chain(3)


def _step(model: Any) -> None:
    model(models.integers(2, 4)).sum().backward()


def _plain(ctx: RankContext) -> None:
    model = ctx.subject.DistributedDataParallel(_net())
    with model.join():
        for _ in range(1 + ctx.rank):
            _step(model)


def _sharded(ctx: RankContext) -> None:
    model = ctx.subject.DistributedDataParallel(_net(), gradient_as_bucket_view=True)
    zero = ctx.subject.ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=2**-6)
    _step(model)
    zero.step()
    zero.consolidate_state_dict(0)


def _hooked(ctx: RankContext) -> None:
    model = ctx.subject.DistributedDataParallel(_net())
    model.register_comm_hook(None, ctx.subject.default_hooks.fp16_compress_hook)
    _step(model)


def _overlapped(ctx: RankContext) -> None:
    if ctx.subject.name == "torch":
        return
    model = ctx.subject.DistributedDataParallel(_net(), bucket_cap_mb=overlapping.CAP_MIB)
    zero = ctx.subject.ZeroRedundancyOptimizer(
        model.parameters(), torch.optim.SGD, lr=2**-6, overlap_with_ddp=True
    )
    hook = ctx.subject.hook_with_zero_step_interleaved(ctx.subject.default_hooks.allreduce_hook, model, zero)
    model.register_comm_hook(None, hook)
    with ctx.subject.Join([model, zero]):
        for _ in range(1 + ctx.rank):
            _step(model)


def growth(subject: str, iterations: int, constructions: int) -> list[list[Grown]]:
    """What has grown, by rank, over so many iterations and constructions."""
    limits: dict[str, Any] = {"world": WORLD, "subject": subject, "deadline_s": 3600.0, "stall_s": 60.0}
    with Cluster(placing=False, preload=["conformance.faults.soak"]) as cluster:
        parts = [cluster.run(iterate, (iterations,), **limits), cluster.run(construct, (constructions,), **limits)]
        by_rank = zip(*(part.values() for part in parts), strict=True)
        return [[grown for part in of_rank for grown in part] for of_rank in by_rank]


def table(grown: Sequence[Sequence[Grown]]) -> str:
    """First and last figures, side by side."""
    lines = ["| over | rank | " + " | ".join(MOST) + " |", "| --- | --- | " + " | ".join("---" for _ in MOST) + " |"]
    for rank, of_rank in enumerate(grown):
        for each in of_rank:
            told = [f"{each.first[name]:g} → {each.last[name]:g}" for name in MOST]
            lines.append(f"| {each.what} | {rank} | {' | '.join(told)} |")
    return "\n".join(lines)
