"""Traces of a few iterations: what each rank computes, when it waits, and when each collective is under way.

Measured apart from all timings, with torch's profiler, which slows an iteration down; so a trace says what overlaps
with what, and not how long a step takes. The clocks of ranks on one machine are one clock; those of several are not.
"""

from __future__ import annotations

import bisect
import json
import statistics
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..plan.cells import Cell

if TYPE_CHECKING:
    from conformance.ranks import RankContext

WARM, KEPT = 6, 5  # iterations before the profiler is on, and with it
Stretch = tuple[float, float]  # from, until
PHASES = ("forward", "backward", "step")
MARK = "joinery: mark"
_GAP_US = 30.0  # between operators: the host's own work, not a wait
_FRAMES = ("autograd", "torch", "c10d")
_PACED = ("_Waiting", "_WaitingBackward")  # layers of ``workloads/paced.py``, which wait where others compute
_STEP = "Optimizer.step#"  # what torch's optimizers call their steps in a profile
_ITEM_BYTES = {"double": 8, "long int": 8, "float": 4, "int": 4, "c10::Half": 2, "c10::BFloat16": 2, "unsigned char": 1,
               "bool": 1}  # fmt: skip


@dataclass(frozen=True)
class Span:
    """Something that lasted, in microseconds on the clock of the machine."""

    lane: str  # phase, optimizer (its steps, wherever they run), compute, waiting, or "collectives" and a number
    name: str
    start_us: float
    end_us: float
    n_bytes: int = 0

    def moved(self, by_us: float) -> Span:
        return replace(self, start_us=self.start_us + by_us, end_us=self.end_us + by_us)

    def cut(self, start_us: float, end_us: float) -> Span:
        return replace(self, start_us=max(self.start_us, start_us), end_us=min(self.end_us, end_us))


@dataclass(frozen=True)
class Iteration:
    """One iteration of one variant, on all ranks: ``spans[rank]``, from the moment that the first rank began."""

    cell: Cell
    spans: list[list[Span]]

    @property
    def length_us(self) -> float:
        return max(span.end_us for rank in self.spans for span in rank)


# -- on the ranks


@dataclass
class Traced:
    """What one rank brings home of one variant: the moments of its phases, and all spans of the profiled iterations."""

    marks_us: list[list[float]] = field(default_factory=list)  # [iteration][start, forward, backward and step done]
    spans: list[Span] = field(default_factory=list)
    gap: float = 0.0  # to the oracle, in units of what is allowed


def traced(ctx: RankContext, cells: Sequence[Cell], specs: dict[str, str]) -> dict[str, Traced]:
    """Rank function: trace every cell, by its series. What it trains is compared with one process as ever."""
    import torch.distributed as dist

    from conformance.subjects import resolve

    from ..workloads import load
    from .trainer import Trainer, measured_group, quietly
    from .verify import expected, in_full_precision

    harness_group: Any = dist.new_group(backend="gloo")
    found = {}
    with quietly(), in_full_precision():
        for cell in cells:
            workload, group = load(cell.workload, cell.size), measured_group(ctx, [cell])
            trainer = Trainer(ctx, cell, resolve(specs.get(cell.subject, "torch")), workload, group)
            batches = [tuple(part.to(ctx.device) for part in workload.batch(ctx.rank, at)) for at in range(WARM + KEPT)]
            trainer.steps(batches[:WARM], _marks())
            trainer.reset()
            dist.barrier(group=harness_group)
            one = _profiled(trainer, batches[:KEPT])
            answer = expected(workload, cell, (KEPT,) * ctx.world, range(ctx.world), ctx.device)
            one.gap = answer.gap(trainer.bare, ctx.rank)[0]
            found[cell.series] = one
    return found


def _marks(device: Any = None) -> Any:
    """A clock without events: the device's own times come from the profiler.

    On a GPU every iteration begins with the device at rest. Otherwise the host runs ahead, and what the device computes
    while the host is in an iteration belongs to an earlier one.
    """
    import torch

    from .clock import Clock

    class Resting(Clock):
        def mark(self) -> None:
            if len(self.wall) % 4 == 0:
                torch.cuda.synchronize()
            super().mark()

    return (Resting if device is not None and device.type == "cuda" else Clock)(torch.device("cpu"))


def _profiled(trainer: Any, batches: Sequence[Any]) -> Traced:
    import torch
    from torch.profiler import ProfilerActivity, profile, record_function

    on_device = trainer.device.type == "cuda"  # then spans of an iteration end before the next one begins
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_device else [])]
    clock = _marks(trainer.device)
    with profile(activities=activities, record_shapes=True) as profiled:
        with record_function(MARK):
            moment_us = time.perf_counter_ns() / 1e3
        trainer.steps(batches, clock)
        if on_device:
            torch.cuda.synchronize()
    with tempfile.TemporaryDirectory(prefix="perf-") as folder:
        path = Path(folder, "trace.json")
        profiled.export_chrome_trace(str(path))
        events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    walls = [wall / 1e3 for wall in clock.wall]
    marks = [walls[at : at + 4] for at in range(0, len(walls), 4)]
    return Traced(marks, list(spans_of(events, moment_us)))


# -- from events to spans


def spans_of(events: Iterable[dict[str, Any]], moment_us: float) -> Iterator[Span]:
    """The spans in a profiler's events, on the clock of the machine, which said ``moment_us`` at the mark."""
    whole = [event for event in events if event.get("ph") == "X" and "dur" in event]
    mark = next(event for event in whole if event["name"] == MARK and event.get("cat") == "user_annotation")
    shift = moment_us - float(mark["ts"])
    kernels = [event for event in whole if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
    collectives = [event for event in whole if _is_collective(event, bool(kernels))]
    if kernels:
        working = [event for event in kernels if event not in collectives]
    else:
        working = [event for event in whole if _is_work(event, mark["tid"])]
    for start, end in merged((float(event["ts"]), float(event["ts"]) + float(event["dur"])) for event in working):
        yield Span("compute", "compute", start, end).moved(shift)
    threads = {thread: place for place, thread in enumerate(sorted({str(event["tid"]) for event in collectives}), 1)}
    for event in whole:
        if str(event["name"]).startswith(_STEP) and event.get("cat") == "user_annotation":
            start = float(event["ts"])
            yield Span("optimizer", "step", start, start + float(event["dur"])).moved(shift)
    for event in collectives:
        start, lane = float(event["ts"]), f"collectives {threads[str(event['tid'])]}"
        yield Span(lane, _name(event["name"]), start, start + float(event["dur"]), _bytes(event)).moved(shift)


def _is_work(event: dict[str, Any], thread: Any) -> bool:
    """An operator on the main thread; not the engine's frames around operators and hooks, in which hooks may wait."""
    name = str(event["name"])
    space, found, _ = name.partition("::")
    operator = (bool(found) and space not in _FRAMES) or name in _PACED
    return event.get("cat") == "cpu_op" and event["tid"] == thread and operator


def _is_collective(event: dict[str, Any], on_device: bool) -> bool:
    """A collective while it runs: a kernel of NCCL, or what a thread of Gloo does for one."""
    name = str(event["name"]).lower()
    if on_device:
        return event.get("cat") == "kernel" and name.startswith("nccl")
    return name.startswith("gloo:")


def _name(name: str) -> str:
    """all-reduce, broadcast … from gloo:all_reduce or ncclDevKernel_AllReduce_Sum_f32_RING_LL."""
    word = name.lower().replace("_", "").replace(":", "").replace("-", "")
    kinds = ("reduce-scatter", "all-reduce", "all-gather", "broadcast", "reduce", "all-to-all", "barrier")
    return next((kind for kind in kinds if kind.replace("-", "") in word), name.removeprefix("gloo:"))


def _bytes(event: dict[str, Any]) -> int:
    """The size of what a collective was given, as far as the event tells."""
    args = event.get("args", {})
    total = 0
    for shape, kind in zip(args.get("Input Dims", []), args.get("Input type", []), strict=False):
        numel = _ITEM_BYTES.get(kind, 0)
        for extent in shape if isinstance(shape, list) else [0]:
            numel *= extent if isinstance(extent, int) else 0
        total += numel
    return total


def merged(spans: Iterable[Stretch], gap: float = _GAP_US) -> list[Stretch]:
    """The union of spans, those closer than ``gap`` taken for one."""
    found: list[Stretch] = []
    for start, end in sorted(spans):
        if found and start - found[-1][1] <= gap:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((start, end))
    return found


# -- from all ranks to one iteration


def typical(cell: Cell, ranks: Sequence[Traced]) -> Iteration:
    """The iteration of median length (that of the slowest rank), from when its first rank began it."""
    lengths = [
        max(one.marks_us[at][-1] for one in ranks) - min(one.marks_us[at][0] for one in ranks)
        for at in range(len(ranks[0].marks_us))
    ]
    chosen = lengths.index(statistics.median_low(lengths))
    began = min(one.marks_us[chosen][0] for one in ranks)
    return Iteration(cell, [_of_one(one, chosen, began) for one in ranks])


def _of_one(one: Traced, chosen: int, began_us: float) -> list[Span]:
    """A rank's phases, work, collectives and waits in the chosen iteration."""
    marks = one.marks_us[chosen]
    after = one.marks_us[chosen + 1][0] if chosen + 1 < len(one.marks_us) else marks[-1]
    last = max([marks[-1], *(span.end_us for span in one.spans if marks[0] <= span.start_us < after)])
    inside = [span.cut(marks[0], last) for span in one.spans if marks[0] <= span.start_us < after]
    inside += [Span("phase", name, marks[at], marks[at + 1]) for at, name in enumerate(PHASES)]
    busy = [(span.start_us, span.end_us) for span in inside if span.lane == "compute"]
    inside += [Span("waiting", "waiting", *gap) for gap in _waits(inside, busy, (marks[0], last))]
    return sorted((span.moved(-began_us) for span in inside), key=lambda span: (span.start_us, span.lane))


def _waits(spans: Sequence[Span], busy: Sequence[Stretch], whole: Stretch) -> list[Stretch]:
    """When the rank computes nothing although a collective of its own is under way."""
    under_way = merged((span.start_us, span.end_us) for span in spans if span.lane.startswith("collectives"))
    edges = [whole[0], *(edge for span in sorted(busy) for edge in span), whole[1]]
    idle = [(edges[at], edges[at + 1]) for at in range(0, len(edges), 2) if edges[at + 1] - edges[at] > _GAP_US]
    return [part for gap in idle for part in _shared(gap, under_way) if part[1] - part[0] > _GAP_US]


def _shared(one: Stretch, others: Sequence[Stretch]) -> Iterator[Stretch]:
    """The parts of ``one`` that lie in ``others``, which are in order and apart."""
    at = bisect.bisect_left([end for _, end in others], one[0])
    for start, end in others[at:]:
        if start >= one[1]:
            return
        yield max(start, one[0]), min(end, one[1])


def overlap(iteration: Iteration) -> list[float]:
    """Overlap efficiency of each rank: the share of its communication's time during which it computes; NaN without."""
    shares = []
    for spans in iteration.spans:
        talking = merged(((span.start_us, span.end_us) for span in spans if span.lane.startswith("collectives")), 0.0)
        working = [(span.start_us, span.end_us) for span in spans if span.lane == "compute"]
        hidden = sum(end - start for one in working for start, end in _shared(one, talking))
        total = sum(end - start for start, end in talking)
        shares.append(hidden / total if total else float("nan"))
    return shares


# -- files


def as_trace(iterations: Sequence[Iteration], header: dict[str, Any]) -> dict[str, Any]:
    """The trace format of Chrome and Perfetto: a process for each rank of each variant, a thread for each lane."""
    events: list[dict[str, Any]] = []
    variants = []
    for number, iteration in enumerate(iterations):
        variants.append({"axes": iteration.cell.axes(), "overlap": [_plain(share) for share in overlap(iteration)]})
        for rank, spans in enumerate(iteration.spans):
            pid = 1000 * (number + 1) + rank
            name = f"{iteration.cell.variant}: rank {rank}"
            events.append({"ph": "M", "pid": pid, "name": "process_name", "args": {"name": name}})
            events.append({"ph": "M", "pid": pid, "name": "process_sort_index", "args": {"sort_index": pid}})
            lanes = ["phase", "optimizer", "compute", "waiting", *_carriers(spans)]
            for tid, lane in enumerate(lanes, 1):
                events.append({"ph": "M", "pid": pid, "tid": tid, "name": "thread_name", "args": {"name": lane}})
            events += [_event(span, pid, lanes.index(span.lane) + 1) for span in spans]
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"header": header, "variants": variants}}


def _carriers(spans: Iterable[Span]) -> list[str]:
    """The lanes of what carries collectives."""
    return sorted({span.lane for span in spans if span.lane.startswith("collectives")})


def _plain(share: float) -> float | None:
    return None if share != share else share


def _event(span: Span, pid: int, tid: int) -> dict[str, Any]:
    more = {"bytes": span.n_bytes} if span.n_bytes else {}
    times = {"ts": round(span.start_us, 3), "dur": round(span.end_us - span.start_us, 3)}
    return {"ph": "X", "pid": pid, "tid": tid, "name": span.name, "cat": span.lane, **times, "args": more}


def iterations_of(trace: dict[str, Any]) -> list[Iteration]:
    """Back from the file."""
    found = []
    for number, variant in enumerate(trace["otherData"]["variants"]):
        cell = Cell(**variant["axes"])
        spans: list[list[Span]] = [[] for _ in range(cell.world)]
        for event in trace["traceEvents"]:
            if event["ph"] == "X" and event["pid"] // 1000 == number + 1:
                end = event["ts"] + event["dur"]
                size = event["args"].get("bytes", 0)
                spans[event["pid"] % 1000].append(Span(event["cat"], event["name"], event["ts"], end, size))
        found.append(Iteration(cell, spans))
    return found


