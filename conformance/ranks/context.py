"""What a function that runs on a rank is given: its place, its subject, its device, its group."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from ..subjects import Subject
from . import collective_trace
from .outcomes import Event


@dataclass
class RankContext:
    """The first argument of every rank function.

    ``group`` is the default process group, set up before the function starts (None if the check asked for
    ``init=False``). ``store`` is a key-value store beside the group: for coordination that must not show up among the
    collectives (``store.set``, ``store.get``, ``store.add``, ``store.wait``).
    """

    rank: int
    world: int
    subject: Subject
    backend: str
    device: torch.device
    store: Any
    one_machine: bool = True  # whether all ranks see the same files; only a launcher can spread them
    progress: Path | None = None  # the file that ``note_progress`` writes

    @property
    def group(self) -> dist.ProcessGroup | None:
        return dist.group.WORLD

    def trace(self) -> tuple[Event, ...]:
        """The collectives that this rank has started so far (only in a recorded run).

        A subject that sends by other means than torch.distributed's groups lacks "recorded collectives".
        """
        self.subject.require("recorded collectives")
        return collective_trace.so_far()

    def note_progress(self) -> None:
        """Say that this rank gets further: a function that sleeps for most of its time would else seem to hang."""
        if self.progress:
            with self.progress.open("ab") as file:
                file.write(b".")

    def part(self, name: str) -> RankContext:
        """The same with keys of its own in the store: for one of several calls in a run."""
        return replace(self, store=dist.PrefixStore(name, self.store))

    def meet(self, name: str) -> None:
        """Wait, without any collective, until every rank has come to the meeting called ``name``."""
        if self.store.add(f"meet/{name}", 1) == self.world:
            self.store.set(f"met/{name}", "1")
        self.store.wait([f"met/{name}"])
