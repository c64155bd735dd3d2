"""What a step allocates on the host at its peak, by torch's profiler; a GPU's allocator counts for itself."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from torch.profiler import ProfilerActivity, profile

_HOST = 0  # torch's number for the device type CPU


def peak_bytes(step: Callable[[], object]) -> int:
    """The most that stood at any moment of ``step`` beyond what stood before it."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        step()
    with tempfile.TemporaryDirectory(prefix="perf-") as folder:
        path = Path(folder, "trace.json")
        profiled.export_chrome_trace(str(path))
        return highest(json.loads(path.read_text(encoding="utf-8"))["traceEvents"])


def highest(events: Iterable[dict[str, Any]]) -> int:
    """The highest level of what a profiler's events allocate and free on the host, where they begin at 0."""
    about = [event for event in events if event.get("name") == "[memory]" and event["args"].get("Device Type") == _HOST]
    level = top = 0
    for event in sorted(about, key=lambda event: float(event["ts"])):
        level += int(event["args"]["Bytes"])
        top = max(top, level)
    return top
