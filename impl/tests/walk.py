"""How far a reader walks: the files of ``impl`` that one settled DDP iteration enters, and how often it changes file.

    python -m impl.tests.walk            a table: plain and inside a join, rank 0 of two; with --path the whole walk

Two ranks over Gloo, two buckets, one BatchNorm; counted over forward and backward of the fourth iteration, every
thread. ``test_walk.py`` holds the figures to their bounds.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
from torch import nn

from impl import DistributedDataParallel, Join
from impl.comm import pending

_HOME = str(Path(__file__).parents[1])
_SETTLED_AFTER = 3  # iterations: buckets are rebuilt and arrivals noted by then


@dataclass
class Walk:
    """The calls of an iteration, in order."""

    steps: list[str] = field(default_factory=list)  # "file:function", whenever the file is another than before
    calls: int = 0

    @property
    def files(self) -> set[str]:
        return {step.partition(":")[0] for step in self.steps}

    @property
    def changes(self) -> int:
        return max(0, len(self.steps) - 1)

    def see(self, frame: FrameType) -> None:
        """A function is called."""
        file = frame.f_code.co_filename
        if not file.startswith(_HOME) or "/tests/" in file:
            return
        self.calls += 1
        place = f"{file.removeprefix(_HOME + '/')}:{frame.f_code.co_qualname}"
        if not self.steps or self.steps[-1].partition(":")[0] != place.partition(":")[0]:
            self.steps.append(place)


def walked(action: Callable[[], Any]) -> Walk:
    """What ``action`` walks, on this thread and on those that autograd has."""
    walk = Walk()

    def profile(frame: FrameType, event: str, _argument: Any) -> None:
        if event == "call":
            walk.see(frame)

    threading.setprofile_all_threads(profile) if sys.version_info >= (3, 12) else threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        action()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
    return walk


def _rank(rank: int, folder: str, joined: bool) -> None:
    pending.until_next_look = lambda *_: 60.0  # a wait for a slow peer asks after it: not a part of every iteration
    store = dist.FileStore(f"{folder}/store-{joined}", 2)
    dist.init_process_group("gloo", rank=rank, world_size=2, store=store)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.Linear(64, 64))
    ddp = DistributedDataParallel(net, bucket_cap_mb_list=[0.016, 0.016])
    inputs = torch.ones(4, 64, device="cpu")

    def iteration() -> None:
        ddp(inputs).sum().backward()

    with Join([ddp]) if joined else nullcontext():
        for _ in range(_SETTLED_AFTER):
            iteration()
        assert len(ddp.reducer.buckets) == 2
        walk = walked(iteration)
    if rank == 0:
        Path(f"{folder}/walk-{joined}").write_text("\n".join([str(walk.calls), *walk.steps]))
    dist.destroy_process_group()


def measured(*, joined: bool) -> Walk:
    """The walk of rank 0 in a fresh job of two ranks."""
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.start_processes(_rank, (folder, joined), nprocs=2, start_method="spawn")
        calls, *steps = Path(f"{folder}/walk-{joined}").read_text().splitlines()
    return Walk(steps, int(calls))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m impl.tests.walk", description="How far a reader walks.")
    parser.add_argument("--path", action="store_true", help="print every change of file")
    arguments = parser.parse_args()
    print("iteration       files  changes of file  calls in impl")
    for name, joined in (("plain", False), ("inside a join", True)):
        walk = measured(joined=joined)
        print(f"{name:14} {len(walk.files):6} {walk.changes:16} {walk.calls:14}")
        if arguments.path:
            print(*(f"    {step}" for step in walk.steps), sep="\n")


if __name__ == "__main__":
    main()
