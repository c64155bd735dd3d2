"""Which way several ranks of NCCL can share one GPU here, if any."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist

from ..ranks import Cluster, NotRunnable, RankContext, RunFailed
from .findings import HELD, NOT_RUN, Finding, FindingsFile, in_one_line

_LIMIT_S, _STALL_S = 50.0, 20.0  # a GPU that starts from cold keeps its ranks waiting for seconds


def summed(ctx: RankContext) -> float:
    """Rank function: the sum of 1, 2, … over the ranks, by a collective that has really run."""
    values = torch.full((1024,), float(ctx.rank + 1), device=ctx.device)
    dist.all_reduce(values)
    return float(values.sum().item()) / values.numel()


def way(backend: str) -> str:
    """The sentence that is true where this backend takes two ranks."""
    return f"two ranks add up on {backend}"


def find(findings: FindingsFile, backends: Sequence[str]) -> None:
    """Try one way after the other; the first that works is the one to use."""
    for backend in backends:
        findings.once(way(backend), lambda backend=backend: _tried(backend))  # type: ignore[misc]
        if any(one.what == way(backend) and one.state == HELD for one in findings.all):
            return


def _tried(backend: str) -> Finding:
    """A refusal is no fault: NCCL promises none of these ways."""
    what = way(backend)
    try:
        with Cluster(backend, deadline_s=_LIMIT_S, stall_s=_STALL_S, most_times=1.0) as cluster:
            values = cluster.run(summed, world=2, subject="torch", group_timeout_s=_LIMIT_S).values()
    except (NotRunnable, RunFailed) as error:
        return Finding(what, NOT_RUN, in_one_line(error))
    return Finding(what, HELD) if values == [3.0, 3.0] else Finding(what, NOT_RUN, f"the sums are {values}, not 3")
