"""Counts what an iteration of each variant sends, its collectives and their bytes, by the suite's collective trace.

On a GPU also what it launches there, and how often the host waits for it, by torch's profiler. Apart from all timings,
on fresh ranks, because a collective trace slows every collective down.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

from ..plan.cells import Cell
from .rows import OK, Row

if TYPE_CHECKING:
    from conformance.ranks import Event, RankContext

WARM, KEPT = 6, 4  # iterations before it is counted, and while it is
_PIECE = ("all_gather", "all_gather_into_tensor", "reduce_scatter", "reduce_scatter_tensor")  # the event has one rank's
Counted = dict[str, float]


def sent_bytes(event: Event, world: int) -> float:
    """What a bandwidth-optimal algorithm sends from each rank, on average: the usual measure of bus bandwidth."""
    import torch

    if not event.dtype:
        return 0.0
    size: int = prod(event.shape) * getattr(torch, event.dtype).itemsize
    if event.op in _PIECE:
        return float(size * (world - 1))
    return size * (world - 1) / world * (2 if event.op == "all_reduce" else 1)


def on_rank(ctx: RankContext, cells: Sequence[Cell], specs: dict[str, str]) -> dict[str, Counted]:
    """Rank function: for every cell, by its series, the collectives and bytes of an iteration."""
    from conformance.subjects import resolve

    from ..workloads import load
    from .trainer import Trainer, measured_group, quietly

    found = {}
    with quietly():
        for cell in cells:
            workload, group = load(cell.workload, cell.size), measured_group(ctx, [cell])
            trainer = Trainer(ctx, cell, resolve(specs.get(cell.subject, "torch")), workload, group)
            batch = tuple(part.to(ctx.device) for part in workload.batch(ctx.rank, 0))
            found[cell.series] = _counted(ctx, trainer, batch)
    return found


def _counted(ctx: RankContext, trainer: Any, batch: Any) -> Counted:
    import torch

    from .clock import Clock

    silent = Clock(torch.device("cpu"))
    if trainer.cell.strategy == "after_join":
        with trainer.join():
            trainer.iterate(batch, silent)
    with trainer.context():
        for _ in range(WARM):
            trainer.iterate(batch, silent)
        before = len(ctx.trace())
        for _ in range(KEPT):
            trainer.iterate(batch, silent)
        events = ctx.trace()[before:]
        on_device = _on_device(trainer, batch, silent) if ctx.device.type == "cuda" else {}
    moved = sum(sent_bytes(event, ctx.world) for event in events)
    reductions = sum("reduce" in event.op for event in events)
    found = {"collectives": len(events) / KEPT, "reductions": reductions / KEPT, "moved_bytes": moved / KEPT}
    return {**found, **on_device}


def _on_device(trainer: Any, batch: Any, silent: Any) -> Counted:
    from torch.profiler import ProfilerActivity, profile

    def calls(iterations: int) -> dict[str, int]:
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiled:
            for _ in range(iterations):
                trainer.iterate(batch, silent)
        return {event.key: event.count for event in profiled.key_averages()}

    own = calls(0)  # the profiler waits for the device itself, at its start and its end
    return host_calls({name: count - own.get(name, 0) for name, count in calls(KEPT).items()})


def host_calls(counts: Mapping[str, int]) -> Counted:
    """Kernels launched and waits for the device in an iteration, from a profile's calls of the CUDA runtime."""
    launches = sum(count for name, count in counts.items() if name.startswith("cu") and "LaunchKernel" in name)
    waits = sum(count for name, count in counts.items() if name.startswith("cu") and name.endswith("Synchronize"))
    return {"launches": launches / KEPT, "synchronisations": waits / KEPT}


def noted(rows: Iterable[Row], counted: dict[str, Counted]) -> list[Row]:
    """The rows with what was counted of them among their derived figures."""
    return [{**row, "derived": {**row["derived"], **counted.get(row["series"], {})}} for row in rows]


def countable(rows: Iterable[Row]) -> list[Cell]:
    """The cells of these rows of which an iteration can be counted."""
    from ..plan.axes import known_trouble

    sound = [Cell(**row["axes"]) for row in rows if row["status"] == OK and row["unit"] == "step"]
    return [cell for cell in sound if cell.copy == 1 and cell.subject != "none" and not known_trouble(cell.axes())]
