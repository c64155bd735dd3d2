"""Cells and groups: what one measurement is about, as plain values that travel to ranks and into records."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True)
class Cell:
    """One cell of a sweep. The fields are the axes, worked out for this machine (no "auto" is left)."""

    workload: str
    size: str
    world: int
    backend: str
    device: str  # cpu or cuda
    unit: str
    skew: str
    skew_fraction: float
    optimizer: str
    subject: str  # the subject's name; "none" where nothing communicates
    hook: str
    strategy: str
    zero: str
    cap_mib: float
    bucket_view: bool
    shard_buckets: bool
    settings: str
    copy: int = 1  # 2: the same once more, to see what this machine makes of it
    pace: float = 1.0  # of a paced workload
    network: str = ""  # between hosts of this machine, one for each rank; empty: there are none

    def axes(self) -> dict[str, Any]:
        return dict(vars(self))

    @property
    def shared(self) -> str:
        """What all cells of a group have in common, readable."""
        words = [self.workload, self.size, f"world {self.world}", self.backend, self.skew, self.unit, self.optimizer]
        if self.skew != "even" and self.skew != "zero_input":
            words[5:5] = [f"{self.skew_fraction:g}"]
        words[2:2] = [f"pace {self.pace:g}"] if self.pace != 1 else []
        words += [self.network] if self.network else []
        return " · ".join(str(word) for word in words)

    @property
    def variant(self) -> str:
        """What tells this cell from the others of its group, readable; what is as by default goes without saying."""
        words = [self.subject, *(word for word in (self.hook, self.strategy) if word not in ("none", "plain"))]
        words += [{"off": "", "on": "zero", "views": "zero views"}[self.zero]]
        words += [f"cap {self.cap_mib:g}" if self.cap_mib else "", "view" if self.bucket_view else ""]
        words += ["shard" if self.shard_buckets else "", "best" if self.settings == "best" else ""]
        words += ["again" if self.copy > 1 else ""]
        return " · ".join(word for word in words if word)

    @property
    def series(self) -> str:
        return f"{self.shared} | {self.variant}"

    @property
    def joins(self) -> bool:
        """Whether what is measured runs within a Join."""
        return self.strategy in ("join", "throwing")

    @property
    def follows_last(self) -> bool:
        """Whether buffers come from the highest active rank, as within a Join; elsewhere from the first.

        torch's joinables stay enabled after a Join, a break of DDPJ-027 that is listed; its cells are held to that.
        """
        return self.joins or (self.strategy == "after_join" and self.subject == "torch")

    def again(self) -> Cell:
        return replace(self, copy=self.copy + 1)

    def schedule(self, most: int) -> tuple[int, ...]:
        """How many inputs each rank has, where the richest has ``most``."""
        least = most - math.floor(self.skew_fraction * most + 0.5)
        last = self.world - 1
        match self.skew:
            case "one_short":
                return (*[most] * last, least)
            case "zero_input":
                return (*[most] * last, 0)
            case "halves":
                return tuple(least if rank < self.world // 2 else most for rank in range(self.world))
            case "linear":
                return tuple(most - round((most - least) * (last - rank) / last) for rank in range(self.world))
            case _:
                return (most,) * self.world

    def trained(self, most: int) -> tuple[int, ...]:
        """How many inputs each rank trains on under this cell's strategy."""
        schedule = self.schedule(most)
        return (min(schedule),) * self.world if self.strategy in ("flag", "drop_last") else schedule


@dataclass(frozen=True)
class Group:
    """Cells that are measured interleaved, in the same processes and the same process group."""

    name: str  # unique within its run
    cells: tuple[Cell, ...]

    def __iter__(self) -> Iterator[Cell]:
        return iter(self.cells)

    @property
    def world(self) -> int:
        return self.cells[0].world

    @property
    def backend(self) -> str:
        return self.cells[0].backend

    @property
    def network(self) -> str:
        return self.cells[0].network

    def only(self, keep: set[str]) -> Group:
        """The group with those cells whose series is in ``keep``."""
        return replace(self, cells=tuple(cell for cell in self.cells if cell.series in keep))
