"""What about this machine, now, speaks against trusting its times: said before a sweep, and kept in its record."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from ..plan.planning import Plan

_BUSY = 0.25  # load per core from which other work counts


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def complaints(planned: Plan, ranks_here: int | None = None) -> list[str]:
    """One sentence for each reason. ``ranks_here``: ranks on this machine, where not all of a world's are."""
    said = []
    worlds = {group.world for group in planned.groups if group.cells[0].device == "cpu"}
    crowd = min(ranks_here or max(worlds), max(worlds)) if worlds else 0
    if crowd > cores():
        said.append(
            f"oversubscribed: {crowd} ranks share {cores()} cores, so ranks wait for each other's time on a core; "
            "such times say little about a machine with a core per rank"
        )
    said += _without_gpu(planned)
    said += _load()
    said += _frequency()
    if worlds and crowd <= cores() and cores() == (os.cpu_count() or 1):
        said.append("not pinned: the ranks may move between cores; `taskset` or `numactl` would hold them")
    if any(group.cells[0].device == "cuda" for group in planned.groups):
        said += _cuda()
    return said


def _without_gpu(planned: Plan) -> list[str]:
    import torch

    if not torch.cuda.is_available():
        return []
    worlds = sorted({group.world for group in planned.groups if group.cells[0].device == "cpu"})
    few = [world for world in worlds if world > torch.cuda.device_count()]
    words = ", ".join(map(str, few))
    return [f"fewer GPUs than ranks at world {words}: measured on the CPU with Gloo instead"] if few else []


def _load() -> list[str]:
    with contextlib.suppress(OSError, AttributeError):
        load = os.getloadavg()[0]
        if load > _BUSY * cores():
            return [f"other work: the load was {load:.1f} on {cores()} cores before the sweep began"]
    return []


def _frequency() -> list[str]:
    """Processors that change their pace."""
    with contextlib.suppress(OSError):
        governor = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor").read_text(encoding="utf-8").strip()
        if governor != "performance":
            return [f"frequency scaling: the governor of the cores is {governor!r}, not 'performance'"]
    return []


def _cuda() -> list[str]:
    connections = os.environ.get("CUDA_DEVICE_MAX_CONNECTIONS")
    if connections == "1":
        return ["CUDA_DEVICE_MAX_CONNECTIONS=1: kernels and collectives queue up behind each other, which can hide or "
                "remove overlap"]  # fmt: skip
    return []
