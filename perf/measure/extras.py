"""What a sweep measures besides its cells: how long commands take to start, and what a check of the suite costs.

Kept in the footer of the record: ``{"starts": {command: [ns, …]}, "checks": {ranks: [ns, …]}}``, the samples in the
order of the rounds, in each of which everything was measured once, in shuffled order.
"""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from conformance.ranks import RankContext

Samples = dict[str, dict[str, list[int]]]

#: What is typed -> how this Python is called for it. The first is what the others are held against.
STARTS: dict[str, tuple[str, ...]] = {
    "import torch": ("-c", "import torch"),
    "import impl": ("-c", "import impl"),
    "from impl import Join": ("-c", "from impl import Join"),  # `import impl` alone loads next to nothing
    "python -m perf list": ("-m", "perf", "list"),
    "python -m conformance clauses": ("-m", "conformance", "clauses"),
}
CHECK_WORLDS = (1, 2, 3, 4, 5, 6, 7, 8)
_ROUNDS = {"starts": 8, "checks": 12}
ABOUT_S = {"starts": 75.0, "checks": 15.0}  # on a quiet machine; kept free in a budget
_LIMIT_S = 120.0  # of one command, however busy the machine is
_HOME = Path(__file__).parents[2]


def measured(asked: Sequence[str], most_ranks: int, left_s: float | None = None) -> Samples:
    """The samples of what was asked for, as many rounds of it as ``left_s`` has room for.

    A command that fails ends in ``RuntimeError``, for its time says nothing.
    """
    ends = {}
    if left_s is not None:
        end, whole = time.monotonic(), sum(ABOUT_S[each] for each in asked if each in ABOUT_S)
        for each in ABOUT_S:
            end += left_s * ABOUT_S[each] / whole if each in asked else 0.0
            ends[each] = end
    found: Samples = {}
    if "starts" in asked:
        acts = {name: partial(_start, words) for name, words in STARTS.items()}
        found["starts"] = _interleaved(acts, _ROUNDS["starts"], ends.get("starts"))
    if "checks" in asked:
        found["checks"] = _checks([world for world in CHECK_WORLDS if world <= most_ranks], ends.get("checks"))
    return found


def _interleaved(acts: Mapping[str, Callable[[], None]], rounds: int, end: float | None) -> dict[str, list[int]]:
    """The time of each act in each round; a round before them, in which caches fill, does not count.

    No round begins after ``end``.
    """
    order, shuffle = list(acts), random.Random(5)
    taken: dict[str, list[int]] = {name: [] for name in acts}
    for number in range(rounds + 1):
        if end is not None and time.monotonic() >= end:
            break
        shuffle.shuffle(order)
        for name in order:
            began = time.perf_counter_ns()
            acts[name]()
            if number:
                taken[name].append(time.perf_counter_ns() - began)
    return taken


def _start(words: Sequence[str]) -> None:
    done = subprocess.run(
        [sys.executable, *words], cwd=_HOME, stdin=subprocess.DEVNULL, capture_output=True, text=True,
        timeout=_LIMIT_S, check=False,
    )  # fmt: skip
    if done.returncode:
        last_line = done.stderr.strip().split("\n")[-1]
        raise RuntimeError(f"python {' '.join(words)} ended with status {done.returncode}: {last_line}")


def _all_reduced(ctx: RankContext) -> float:
    """Rank function."""
    import torch
    import torch.distributed as dist

    total = torch.ones(1, device=ctx.device)
    dist.all_reduce(total)
    return total.item()


def _checks(worlds: Sequence[int], end: float | None) -> dict[str, list[int]]:
    """A whole run of the smallest check there is, on fresh ranks, as the suite makes one."""
    from conformance.ranks import Cluster

    def check(cluster: Cluster, world: int) -> None:
        values = cluster.run(_all_reduced, world=world, subject="torch").values()
        if values != [world] * world:
            raise RuntimeError(f"the all-reduce of {world} ones gave {values}")

    with Cluster(preload=[__name__]) as cluster:
        acts = {str(world): partial(check, cluster, world) for world in worlds}
        return _interleaved(acts, _ROUNDS["checks"], end)
