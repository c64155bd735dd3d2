"""What one rank brings home of one cell."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class Samples:
    """What one rank brings home of one variant. Lists hold one number a sample, in nanoseconds."""

    status: str = "ok"  # ok · void · failed · not run
    reason: str = ""
    wall: list[int] = field(default_factory=list)
    cpu: list[int] = field(default_factory=list)
    device: list[int] = field(default_factory=list)
    block: list[int] = field(default_factory=list)
    warmup: list[int] = field(default_factory=list)
    phases: dict[str, list[int]] = field(default_factory=dict)  # forward_wall, forward_cpu, … (unit step)
    worst: float = 0.0  # gap to the oracle, in units of what is allowed
    turns: int = 0  # that were verified
    facts: dict[str, Any] = field(default_factory=dict)
