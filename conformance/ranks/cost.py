"""What a run of ranks costs: ``python -m conformance.ranks.cost`` prints a table of medians.

Fresh ranks against persistent ones, with and without a trace, against ``torch.multiprocessing.spawn`` for every run;
each run is one all-reduce of one element. The ways are interleaved, so that a change of load meets all of them.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
import torch.distributed as dist
import torch.multiprocessing

from .backends import LOOPBACK
from .context import RankContext
from .launch import Cluster


def trivial(ctx: RankContext) -> float:
    """The check that is timed."""
    total = torch.ones(1, device=ctx.device)
    dist.all_reduce(total)
    return total.item()


def _spawned(rank: int, world: int, path: str) -> None:
    """The same in a process that ``spawn`` made."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(path, world), rank=rank, world_size=world)
    total = torch.ones(1)
    dist.all_reduce(total)
    if total.item() != world:
        raise RuntimeError(f"the all-reduce of {world} ones gave {total.item()}")
    dist.destroy_process_group()


def spawn_per_run(world: int) -> None:
    with TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(_spawned, args=(world, str(Path(folder) / "store")), nprocs=world)


def run_on(cluster: Cluster, trace: bool, world: int) -> None:
    check = import_module("conformance.ranks.cost").trivial  # not __main__'s, which every rank would have to load
    values = cluster.run(check, world=world, subject="torch", trace=trace).values()
    if values != [world] * world:
        raise RuntimeError(f"the all-reduce of {world} ones gave {values}")


def seconds(act: Callable[[], None]) -> float:
    start = time.perf_counter()
    act()
    return time.perf_counter() - start


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--worlds", default="1,2,3,4,8")
    asked.add_argument("--runs", type=int, default=11, help="of each way and world size, after one to warm up")
    asked.add_argument("--spawns", type=int, default=3, help="of spawn-per-run, which is slow; 0: leave it out")
    arguments = asked.parse_args()
    worlds = [int(world) for world in arguments.worlds.split(",")]
    os.environ.update(LOOPBACK)
    preload = ["conformance.ranks.cost"]
    with Cluster(preload=preload) as fresh, Cluster(persistent=True, preload=preload) as pool:
        ways = {
            "fresh": partial(run_on, fresh, False),
            "fresh, collective trace": partial(run_on, fresh, True),
            "persistent": partial(run_on, pool, False),
            "persistent, collective trace": partial(run_on, pool, True),
        }
        print(f"one all-reduce on fresh groups, milliseconds: median (lowest–highest) of {arguments.runs}; ", end="")
        print(f"spawn of {arguments.spawns}; torch {torch.__version__}, {os.cpu_count()} cores")
        print(" ranks" + "".join(f"{name:>24}" for name in [*ways, "spawn per run"]))
        for world in worlds:
            print(f"{world:>6}" + "".join(f"{cell:>24}" for cell in _row(ways, world, arguments)), flush=True)


def _row(ways: dict[str, partial[None]], world: int, arguments: argparse.Namespace) -> list[str]:
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(arguments.runs + 1):
        for name, way in ways.items():
            spent = seconds(partial(way, world))
            if turn:
                taken[name].append(spent)
    spawned = [seconds(partial(spawn_per_run, world)) for _ in range(arguments.spawns)]
    return [_summary(samples) for samples in [*taken.values(), spawned]]


def _summary(samples: list[float]) -> str:
    if not samples:
        return "–"
    low, middle, high = (1000 * value for value in (min(samples), statistics.median(samples), max(samples)))
    return f"{middle:.0f} ({low:.0f}–{high:.0f})"


if __name__ == "__main__":
    main()
