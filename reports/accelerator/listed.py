"""The parts and their commands without running them: as they would be on one GPU and on several."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from .facts import Facts
from .parts import SHARED, Here
from .run import chosen


def print_all(only: Sequence[str] = ()) -> int:
    """A JSON line for each part on each of two machines."""
    parts = chosen(only)
    for gpus in (1, 4):
        imagined = Facts("2.11.0", "13.0", "2.28.9", [{"name": "GPU"}] * gpus, sanitizer="compute-sanitizer")
        here = Here(imagined, Path("out/gpu/question"), shared=SHARED[-1], measured=Path("out/gpu/question/perf"))
        for part in parts:
            command = part.command(here, part.limit_s)
            line = {"gpus": gpus, "part": part.name, "proves": part.proves, "obstacle": part.obstacle(here),
                    "limit_s": part.limit_s, "command": command}  # fmt: skip
            print(json.dumps(line))
    return 0
