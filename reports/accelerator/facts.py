"""What a run is about: the machine's GPUs, as another room tells them, and which code and libraries are judged."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..history import HistoryError

ROOMS = ("impl", "conformance", "perf", "reports")
_LOOKED_AT = (".py", ".toml")
_LIMIT_S = 120.0


@dataclass(frozen=True)
class Facts:
    """The GPUs and what drives them."""

    torch: str
    cuda: str = ""
    nccl: str = ""
    gpus: list[dict[str, Any]] = field(default_factory=list)  # name, memory_mib, capability
    why: str = ""  # why there is no GPU
    sanitizer: str = ""  # where compute-sanitizer lies; empty if it is not installed

    @property
    def named(self) -> str:
        """The GPUs in words: ``2 × NVIDIA H100``."""
        names = [str(one["name"]) for one in self.gpus]
        several = [(name, names.count(name)) for name in dict.fromkeys(names)]
        return ", ".join(name if count == 1 else f"{count} × {name}" for name, count in several)


def looked_up() -> Facts:
    """Ask the suite, in a process of its own: this room loads no torch."""
    command = [sys.executable, "-m", "conformance", "gpu", "facts"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_S, stdin=subprocess.DEVNULL)
        return Facts(**json.loads(done.stdout.strip().splitlines()[-1]))
    except (OSError, subprocess.SubprocessError, ValueError, TypeError, IndexError) as error:
        raise HistoryError(f"`{' '.join(command[1:])}` did not say which GPUs there are ({error})") from error


def standing_in(facts: Facts) -> Facts:
    """What a rehearsal goes by: the CPU in the place of one GPU."""
    cpu = {"name": "the CPU, standing in for a GPU", "memory_mib": 0, "capability": ""}
    return Facts(torch=facts.torch, gpus=[cpu])


def question(facts: Facts, *more: str) -> str:
    """A short name for all that a result depends on: what was finished under another one does not count."""
    text = json.dumps([asdict(facts), list(more), sys.version], sort_keys=True)
    return hashlib.sha256(f"{text}{_sources()}".encode()).hexdigest()[:12]


def _sources() -> str:
    """The code as it stands, whether it is committed or not, or no repository at all."""
    here = Path(__file__).parents[2]
    whole = hashlib.sha256()
    for room in ROOMS:
        for path in sorted((here / room).rglob("*")):
            if path.suffix in _LOOKED_AT and path.is_file():
                whole.update(f"{path.relative_to(here)}\0".encode() + path.read_bytes())
    return whole.hexdigest()
