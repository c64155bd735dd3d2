"""Whether streams wait for each other: the same training with one side held up, and what the profiler saw of it."""

from __future__ import annotations

import contextlib
import functools
import json
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from ..fixtures.comm_hooks import gap
from ..fixtures.overlapping import CAP_MIB, Overlap, batch, iteration, pair_of, small, squares
from ..fixtures.training import Numbers, ddp, parameters
from ..ranks import Cluster, RankContext
from . import delays
from .findings import NOT_RUN, Finding, FindingsFile, figure, held

_LIMIT_S, _STALL_S = 120.0, 20.0  # a GPU that starts from cold keeps its ranks waiting for seconds
_ITERATIONS = 6
_PROFILED = 3
_MOST_GAP = 1e-5  # a value that was read too early is off by far more


@dataclass(frozen=True)
class Case:
    """One way to train."""

    name: str
    ddp: Mapping[str, Any] = field(default_factory=dict)
    hook: str = ""  # of the subject's default hooks; "powersgd"; "sequential" or "interleaved" for the overlapped step
    zero: bool = False
    uneven: bool = False  # under Join, rank 0 with two inputs fewer


CASES = (
    Case("DDP"),
    Case("DDP with bucket views", {"gradient_as_bucket_view": True}),
    Case("DDP that looks for unused parameters", {"find_unused_parameters": True}),
    Case("DDP with a static graph", {"static_graph": True}),
    Case("DDP with a hook of its own", hook="allreduce_hook"),
    Case("DDP with gradients sent in half precision", hook="fp16_compress_hook"),
    Case("DDP with PowerSGD", hook="powersgd"),
    Case("DDP and ZeRO", zero=True),
    Case("the overlapped step", hook="sequential"),
    Case("the interleaved overlapped step", hook="interleaved"),
    Case("DDP under Join on uneven inputs", uneven=True),
    Case("DDP and ZeRO under Join on uneven inputs", zero=True, uneven=True),
)


# -- on a rank


def trained(ctx: RankContext, case: Case, late: str) -> Numbers:
    """Rank function: the parameters after some iterations, with one side held up."""
    with contextlib.ExitStack() as stack:
        iterate, model = _training(ctx, case)
        if late == delays.GRADIENTS:
            delays.late_gradients(model.parameters(), ctx.device)
        if late == delays.COLLECTIVES:
            stack.enter_context(delays.late_collectives(ctx.device))
        count = _ITERATIONS - 2 if case.uneven and not ctx.rank else _ITERATIONS
        with _joined(ctx, case, model, iterate):
            for number in range(count):
                iterate(number)
        return parameters(model)


def profiled(ctx: RankContext, case: Case) -> dict[str, float]:
    """Rank function: what an iteration costs the host, and on which streams it runs; empty on the CPU."""
    iterate, _ = _training(ctx, case)
    for number in range(_ITERATIONS):
        iterate(number)
    accelerated = ctx.device.type == "cuda"
    seen = seen_in(_events(iterate, accelerated), _events(lambda _: None, accelerated))
    return seen if accelerated else {}


def seen_in(events: Iterable[Mapping[str, Any]], idle: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Launches and waits of an iteration (less those of a profile of nothing), kernels of NCCL and streams of both."""
    events = list(events)
    kernels = [event for event in events if event.get("cat") == "kernel"]
    sending = {event["args"].get("stream") for event in kernels if _sends(event)}
    computing = {event["args"].get("stream") for event in kernels if not _sends(event)}
    waits = _calls(events, "Synchronize") - _calls(idle, "Synchronize")
    return {
        "launches": _calls(events, "LaunchKernel") / _PROFILED, "synchronisations": waits / _PROFILED,
        "sending": float(len(sending)), "shared": float(len(sending & computing)),
    }  # fmt: skip


def _sends(event: Mapping[str, Any]) -> bool:
    return str(event.get("name", "")).lower().startswith("nccl")


def _calls(events: Iterable[Mapping[str, Any]], word: str) -> int:
    names = [str(event.get("name")) for event in events if event.get("cat") in ("cuda_runtime", "cuda_driver")]
    return sum(word in name for name in names)


def _events(iterate: Callable[[int], Any], accelerated: bool) -> list[dict[str, Any]]:
    from torch.profiler import ProfilerActivity, profile

    if accelerated:
        torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if accelerated else [])]) as found:
        for number in range(_PROFILED):
            iterate(number)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace.json")
        found.export_chrome_trace(str(path))
        events: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    return events


def _training(ctx: RankContext, case: Case) -> tuple[Callable[[int], Any], Any]:
    """What makes one iteration, and the model."""
    if case.hook in ("sequential", "interleaved"):
        pair = pair_of(ctx, Overlap(interleaved=case.hook == "interleaved", model=small))
        return functools.partial(iteration, pair, measure=squares), pair.ddp
    model = ddp(ctx, small().to(ctx.device), bucket_cap_mb=CAP_MIB, **case.ddp)
    _register(ctx, case, model)
    optimizer = _optimizer(ctx, case, model)

    def iterate(number: int) -> None:
        optimizer.zero_grad(set_to_none=True)
        squares(model(batch(ctx.rank, number).to(ctx.device))).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    iterate.optimizer = optimizer  # type: ignore[attr-defined]
    return iterate, model


def _register(ctx: RankContext, case: Case, model: Any) -> None:
    if case.hook == "powersgd":
        made = ctx.subject.powerSGD_hook
        state = made.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2, min_compression_rate=1)
        model.register_comm_hook(state, made.powerSGD_hook)
    elif case.hook:
        model.register_comm_hook(None, getattr(ctx.subject.default_hooks, case.hook))


def _optimizer(ctx: RankContext, case: Case, model: Any) -> Any:
    if case.zero:
        return ctx.subject.ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.25, momentum=0.5)
    return torch.optim.SGD(model.parameters(), lr=0.25, momentum=0.5)


def _joined(ctx: RankContext, case: Case, model: Any, iterate: Any) -> Any:
    joined = [model, iterate.optimizer] if case.zero else [model]
    return ctx.subject.Join(joined) if case.uneven else contextlib.nullcontext()


# -- on the driver


def find(findings: FindingsFile, backend: str, world: int, cases: Iterable[Case] = CASES, *, look: bool = True) -> None:
    """Every case with each side held up; then, to ``look``, what the profiler sees of DDP, ours beside torch's."""
    with Cluster(backend, deadline_s=_LIMIT_S, stall_s=_STALL_S, most_times=1.0) as cluster:
        for case in cases:
            what = f"{case.name}: the same numbers, whichever side is late"
            findings.once(what, functools.partial(_compared, what, cluster, world, case))
        for case in CASES[:2] if look else ():
            what = f"{case.name}: collectives run on streams of their own"
            findings.once(what, functools.partial(_looked_at, what, cluster, world, case))


def _compared(what: str, cluster: Cluster, world: int, case: Case) -> Finding:
    def run(late: str) -> list[Numbers]:
        run = cluster.run(trained, (case, late), world=world, subject="impl", trace=True, reuse=True)
        found: list[Numbers] = run.values()
        return found

    in_time = run(delays.IN_TIME)
    apart = {late: gap(run(late), in_time) for late in (delays.GRADIENTS, delays.COLLECTIVES)}
    wrong = [f"{late}: {far:.3g} apart" for late, far in apart.items() if not far <= _MOST_GAP]
    return held(what, not wrong, ", ".join(wrong))


def _looked_at(what: str, cluster: Cluster, world: int, case: Case) -> list[Finding]:
    ours, theirs = (cluster.run(profiled, (case,), world=world, subject=who).values()[0] for who in ("impl", "torch"))
    if not ours:
        return [Finding(what, NOT_RUN, "the CPU has no streams")]
    names = ("launches", "synchronisations")
    figures = [figure(f"{case.name}: {name} an iteration", ours[name], "", theirs.get(name)) for name in names]
    if not ours["sending"]:  # one rank has nothing to send
        return [Finding(what, NOT_RUN, "no kernel of NCCL was seen"), *figures]
    return [held(what, not ours["shared"], "kernels of NCCL and of the model share a stream"), *figures]


__all__ = ["CASES", "Case", "find", "profiled", "seen_in", "trained"]
