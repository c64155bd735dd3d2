"""What lies on the device: at the peak of the first iterations, and after fifty objects have come and gone."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from ..fixtures.training import ddp
from ..ranks import Cluster, RankContext
from .findings import NOT_RUN, Finding, FindingsFile, figure, held

_LIMIT_S, _STALL_S = 120.0, 20.0  # a GPU that starts from cold keeps its ranks waiting for seconds
_TIMES = 50
_LAYERS, _WIDTH = 16, 1024  # 64 MiB of float32
_MIB = 2**20
_FLAT = "fifty models under DDP and ZeRO that have come and gone leave nothing behind"


def peaks(ctx: RankContext) -> dict[str, float]:
    """Rank function: MiB at the peak of making DDP, of the iterations until buckets are rebuilt, and of a later one."""
    if ctx.device.type != "cuda":
        return {}
    model = nn.Sequential(*[nn.Linear(_WIDTH, _WIDTH, bias=False) for _ in range(_LAYERS)]).to(ctx.device)
    batch = torch.ones(8, _WIDTH, device=ctx.device)
    model(batch).sum().backward()  # the work spaces of cuBLAS come with a process's first products, whoever's they are
    model.zero_grad(set_to_none=True)
    gc.collect()
    found, base = {}, torch.cuda.memory_allocated()

    def peak(what: str, act: Callable[[], Any]) -> Any:
        torch.cuda.reset_peak_memory_stats()
        value = act()
        torch.cuda.synchronize()
        found[what] = (torch.cuda.max_memory_allocated() - base) / _MIB
        return value

    wrapped = peak("making DDP", lambda: ddp(ctx, model))
    peak("the first two iterations", lambda: [wrapped(batch).sum().backward() for _ in range(2)])
    peak("a later iteration", lambda: wrapped(batch).sum().backward())
    return found


def left_behind(ctx: RankContext) -> tuple[int, int]:
    """Rank function: bytes on the device after few and after many constructions and drops."""

    def once() -> None:
        model = ddp(ctx, nn.Linear(64, 64).to(ctx.device))
        zero = ctx.subject.ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.125)
        with ctx.subject.Join([model, zero]):
            for _ in range(3):
                model(torch.ones(1, 64, device=ctx.device)).sum().backward()
                zero.step()

    def after(count: int) -> int:
        for _ in range(count):
            once()
        gc.collect()
        return torch.cuda.memory_allocated() if ctx.device.type == "cuda" else 0

    return after(3), after(_TIMES)


def find(findings: FindingsFile, backend: str, world: int) -> None:
    with Cluster(backend, deadline_s=_LIMIT_S, stall_s=_STALL_S, most_times=1.0) as cluster:

        def flat() -> Finding:
            few, many = cluster.run(left_behind, world=world, subject="impl").values()[0]
            return held(_FLAT, many <= few, f"{many - few} bytes more after {_TIMES}")

        def largest() -> list[Finding]:
            ours, theirs = (cluster.run(peaks, world=world, subject=who).values()[0] for who in ("impl", "torch"))
            if not ours:
                return [Finding("memory at its peak", NOT_RUN, "nothing counts the CPU's here")]
            return [figure(f"memory at its peak: {what}", ours[what], "MiB", theirs[what]) for what in ours]

        findings.once(_FLAT, flat)
        findings.once("memory at its peak", largest)
