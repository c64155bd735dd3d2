"""What survivors learn on this backend when a rank raises, dies or stays away, and whether they can go on."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import signal
import time
from typing import Any

import torch
import torch.distributed as dist

from ..fixtures import models
from ..fixtures.training import ddp
from ..ranks import Cluster, Finished, Hung, Raised, RankContext, Run
from .findings import NOT_RUN, Finding, FindingsFile, figure, held

_TIMEOUT_S = 40.0  # of the group: a survivor that learns of a failure by this alone has learned nothing
_LIMIT_S = 100.0
_AT = 2  # the iteration in which it happens
_ABORT_S = 10.0
_BY_HAND = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"}  # else torch may end a process that aborts a group itself
_WHO = "a rank that raises in a Join is named by the others, before the group's timeout"
_ON = "after a rank has raised in a Join, the ranks make a group and go on"
_DEAD = "after a rank was killed in a Join, the others end with an error"
_ABORTED = "a group whose peer stays away can be aborted, and the process goes on"


def find(findings: FindingsFile, backend: str, world: int) -> None:
    """One failure after the other, each on fresh ranks."""
    os.environ.setdefault("TORCH_NCCL_DUMP_ON_TIMEOUT", "0")  # else a process sleeps for a minute before it ends
    with Cluster(backend, deadline_s=_LIMIT_S, stall_s=_LIMIT_S, most_times=1.0) as cluster:
        run = functools.partial(cluster.run, world=world, subject="impl", group_timeout_s=_TIMEOUT_S)
        findings.once(_WHO, lambda: _named(run(raising)))
        findings.once(_ON, lambda: _went_on(_ON, run(going_on)))
        findings.once(_DEAD, lambda: _ended(run(killed)))
        findings.once(_ABORTED, lambda: _let_go(run(aborting, env=_BY_HAND)))


# -- on the ranks


def _train(ctx: RankContext, happens: Any, count: int = 2 * _AT) -> None:
    model = ddp(ctx, models.Sum().to(ctx.device), bucket_cap_mb=1e-4)
    with model.join():
        for number in range(count):
            if number == _AT and ctx.rank == ctx.world - 1:
                happens()
            model(models.integers(1, 4, seed=number).to(ctx.device)).sum().backward()
            if ctx.device.type == "cuda":
                torch.cuda.synchronize()  # as whoever reads the loss: an error must reach the host from here too


def _fail() -> None:
    raise ValueError("planted")


def raising(ctx: RankContext) -> tuple[str, float]:
    """Rank function: what was raised here, and after how long."""
    start = time.monotonic()
    try:
        _train(ctx, _fail)
    except Exception as error:
        return f"{type(error).__name__}: {error}", time.monotonic() - start
    return "", time.monotonic() - start


def going_on(ctx: RankContext) -> float:
    """Rank function: a sum over a group that is made after the failure."""
    with contextlib.suppress(Exception):
        _train(ctx, _fail)
    return _anew(ctx)


def killed(ctx: RankContext) -> tuple[str, float]:
    """Rank function: the last rank ends as by the kernel's hand."""
    start = time.monotonic()
    try:
        _train(ctx, lambda: os.kill(os.getpid(), signal.SIGKILL))
    except Exception as error:
        return f"{type(error).__name__}: {error}", time.monotonic() - start
    return "", time.monotonic() - start


def aborting(ctx: RankContext) -> tuple[float, float] | str:
    """Rank function: an all-reduce that the last rank never starts is aborted; then a new group adds up."""
    from torch.distributed import distributed_c10d

    abort = getattr(distributed_c10d, "_abort_process_group", None)
    if abort is None or ctx.device.type == "cpu":
        return "asked of NCCL only, where this torch can abort a group"
    group = dist.new_group(list(range(ctx.world)))
    dist.all_reduce(torch.ones(1, device=ctx.device), group=group)  # NCCL connects with the first one
    start = time.monotonic()
    if ctx.rank < ctx.world - 1:
        dist.all_reduce(torch.ones(1, device=ctx.device), group=group, async_op=True)
        start = time.monotonic()
        try:
            abort(group)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
    return time.monotonic() - start, _anew(ctx)


def _anew(ctx: RankContext) -> float:
    ctx.meet("anew")
    group = dist.new_group(list(range(ctx.world)))
    value = torch.ones(1, device=ctx.device)
    dist.all_reduce(value, group=group)
    return float(value.item())


# -- what it says


def _named(run: Run) -> list[Finding]:
    *others, failed = run.values()
    wrong = [said for said, _ in others if not re.search(rf"\brank {len(others)}\b", said)]
    late = max(after for _, after in others)
    why = f"they said: {wrong[0][:300]!r}" if wrong else f"the last one heard of it after {late:.0f} s"
    found = held(_WHO, failed[0].startswith("ValueError: planted") and not wrong and late < _TIMEOUT_S / 2, why)
    return [found, figure("seconds until all know that a rank has raised", late, "s")]


def _went_on(what: str, run: Run) -> Finding:
    sums = run.values()
    return held(what, sums == [float(len(sums))] * len(sums), f"the sums are {sums}")


def _ended(run: Run) -> list[Finding]:
    """An error that was caught, one that ended the rank, or the backend's own end of the process: not a hang."""
    *others, _ = run.outcomes
    hung = sum(isinstance(one, Hung) for one in others)
    silent = [one for one in others if isinstance(one, Finished) and not one.value[0]]
    said = [one.value for one in others if isinstance(one, Finished) and one.value[0]]
    found = [held(_DEAD, not hung and not silent, f"{hung} hung, {len(silent)} saw nothing: {run.summary()[:300]}")]
    if said:
        dead = len(others)
        named = [text for text, _ in said if re.search(rf"\brank {dead}\b", text)]
        what = "they name the rank that was killed"
        found += [held(what, len(named) == len(said), f"they said: {said[0][0][:300]!r}")]
        found += [figure("seconds until all know that a rank was killed", max(after for _, after in said), "s")]
    return found


def _let_go(run: Run) -> list[Finding]:
    refused = [one.value for one in run.outcomes if isinstance(one, Finished) and isinstance(one.value, str)]
    if refused:
        return [Finding(_ABORTED, NOT_RUN, refused[0][:300])]
    if any(isinstance(one, Raised) for one in run.outcomes):
        return [held(_ABORTED, False, run.summary()[:300])]
    values = run.values()
    longest = max(after for after, _ in values)
    sums = [total for _, total in values]
    right = sums == [float(len(sums))] * len(sums) and longest < _ABORT_S
    return [
        held(_ABORTED, right, f"it took {longest:.1f} s, and the sums are {sums}"),
        figure("seconds that an abort takes", longest, "s"),
    ]
