"""Measuring on the ranks that torchrun or Slurm has started, on one node or many: rank 0 leads and writes.

Rank 0 sends every rank the order of the next group and gathers what they measured. Nobody can be started anew here, so
a cell that fails or hangs ends the job: it is recorded, and the same command, started again, goes on after it.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from conformance.bad_input import BadInput
from conformance.ranks.place import listening

from ..plan.cells import Cell, Group
from .rows import FAILED, Row, assembled, blank
from .runner import Limit

if TYPE_CHECKING:
    from .on_ranks import Order
    from .traffic import Counted

_BROKEN = "joinery/perf/broken"  # key in the store: which rank raised, what, and with which cell
_MEET_LIMIT = timedelta(minutes=10)
_COLLECTIVE_LIMIT = timedelta(hours=2)  # the watch is there before
_LOOK_EVERY_S = 1.0
_OTHERS_OUTLAST_S = 30.0  # so that rank 0 can write its record before anybody's end brings the job down


@dataclass(frozen=True)
class Spot:
    """This process's place in the job."""

    rank: int
    world: int
    local_rank: int
    local_world: int
    address: str
    port: int


def spot(environ: Mapping[str, str]) -> Spot | None:
    """Where a launcher has put this process; None where there is none."""
    if {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= environ.keys():
        names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
        rank, world, local, local_world = (_number(environ, name) for name in names)
        return Spot(rank, world, local, local_world or 1, environ["MASTER_ADDR"], _number(environ, "MASTER_PORT"))
    # a batch script has SLURM_PROCID too; only what srun starts is told the number of tasks of its step
    if "SLURM_PROCID" in environ and _number(environ, "SLURM_STEP_NUM_TASKS") > 1:
        rank, world = _number(environ, "SLURM_PROCID"), _number(environ, "SLURM_STEP_NUM_TASKS")
        here = _number(environ, "SLURM_STEP_TASKS_PER_NODE") or world
        port = _number(environ, "MASTER_PORT") or 20000 + _number(environ, "SLURM_JOB_ID") % 20000
        return Spot(rank, world, _number(environ, "SLURM_LOCALID"), here, _first_host(environ), port)
    return None


def _number(environ: Mapping[str, str], name: str) -> int:
    """The leading number of a variable: Slurm writes ``4(x2)`` for four tasks on each of two nodes."""
    digits = environ.get(name, "0").split("(")[0].split(",")[0]
    if not digits.isdecimal():
        raise BadInput(f"the environment says {name}={environ[name]!r}, no number; start with torchrun or srun")
    return int(digits)


def _first_host(environ: Mapping[str, str]) -> str:
    if "MASTER_ADDR" in environ:
        return environ["MASTER_ADDR"]
    command = ["scontrol", "show", "hostnames", environ.get("SLURM_STEP_NODELIST", "")]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise BadInput(f"the first host of the job is not known ({error}); set MASTER_ADDR and MASTER_PORT") from error
    return done.stdout.split()[0]


class Job:
    """The ranks of a job, as each of them sees it."""

    def __init__(self, spot: Spot, backend: str) -> None:
        import torch
        import torch.distributed as dist

        from conformance.ranks import RankContext

        if backend == "nccl":
            device = torch.device("cuda", spot.local_rank)
            torch.cuda.set_device(device)
        else:
            device = torch.device("cpu")
            torch.set_num_threads(1)
        self.spot = spot
        at_agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"  # then torchrun keeps the store
        keeps = spot.rank == 0 and not at_agent
        self.store = dist.TCPStore(
            spot.address, spot.port, spot.world, is_master=keeps, timeout=_MEET_LIMIT,
            master_listen_fd=listening(spot.address, spot.port).detach() if keeps else None,
        )  # fmt: skip
        # a restart of the job meets under other keys
        attempt = f"joinery/perf/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
        dist.init_process_group(
            backend, store=dist.PrefixStore(attempt, self.store), rank=spot.rank, world_size=spot.world,
            timeout=_COLLECTIVE_LIMIT,
        )  # fmt: skip
        self.harness_group = dist.new_group(backend="gloo")
        beside = dist.PrefixStore(f"{attempt}/beside", self.store)
        self.ctx = RankContext(spot.rank, spot.world, "torch", backend, device, beside)  # type: ignore[arg-type]
        self.doing = "starting"

    def tell(self, doing: str) -> None:
        self.doing = doing

    def measure(self, order: Order) -> list[Any] | None:
        """One group, on every rank; rank 0 gets everybody's samples."""
        import torch.distributed as dist

        from .on_ranks import measure

        mine = measure(self.ctx, order, self.tell, self.harness_group)
        everybody: list[Any] | None = [None] * self.spot.world if self.spot.rank == 0 else None
        dist.gather_object(mine, everybody, dst=0, group=self.harness_group)
        return everybody

    def next(self, order: tuple[Order, float] | None = None) -> tuple[Order, float] | None:
        """Hand the next order and its limit from rank 0 to all; None ends the job."""
        import torch.distributed as dist

        told = [order]
        dist.broadcast_object_list(told, src=0, group=self.harness_group)
        return told[0]

    def follow(self) -> int:
        """What every rank but the first does: measure what comes, until nothing does."""
        while (told := self.next()) is not None:
            order, limit_s = told
            overdue = threading.Timer(limit_s + _OTHERS_OUTLAST_S, os._exit, [1])
            overdue.daemon = True
            overdue.start()
            try:
                self.measure(order)
            except Exception as error:
                traceback.print_exc()
                words = f"rank {self.spot.rank} raised {type(error).__name__}: {error}".split("\n")[0][:500]
                with contextlib.suppress(Exception):
                    self.store.set(_BROKEN, json.dumps([self.doing, words]))
                time.sleep(_OTHERS_OUTLAST_S / 3)
                os._exit(1)
            overdue.cancel()
        return 0


class LaunchedRunner:
    """Rank 0's side. ``give_up`` takes the last rows and closes the record; the process then ends."""

    def __init__(self, job: Job, give_up: Callable[[list[Row]], None]) -> None:
        self._job, self._give_up = job, give_up
        self._measuring = False  # while it is, nobody listens for the next order

    def measure(self, order: Order, limit: Callable[[], Limit]) -> Iterator[Row]:
        allowed = limit()
        over = threading.Event()
        watch = threading.Thread(target=self._watch, args=(order.group, allowed, over), daemon=True)
        self._job.next((order, allowed.seconds))
        self._measuring = True
        watch.start()
        try:
            ranks = self._job.measure(order)
        except Exception as error:
            traceback.print_exc()
            over.set()
            self._end(order.group, self._job.doing, FAILED, f"rank 0 raised {type(error).__name__}: {error}")
            raise  # not reached
        self._measuring = False
        over.set()
        watch.join()
        assert ranks is not None
        for cell in order.group:
            yield assembled(cell, order.group, [rank[cell.series] for rank in ranks])

    def traffic(self, order: Order, cells: Sequence[Cell]) -> dict[str, Counted]:
        """Nothing: a collective trace must be there before the process group is, and a launcher's is there already."""
        return {}

    def close(self) -> None:
        if not self._measuring:
            self._job.next(None)

    def _watch(self, group: Group, allowed: Limit, over: threading.Event) -> None:
        """Beside a measurement, in a thread of its own: end the job if it breaks or takes too long."""
        import torch.distributed as dist

        spot = self._job.spot
        store = dist.TCPStore(spot.address, spot.port, is_master=False, timeout=_MEET_LIMIT)
        deadline = time.monotonic() + allowed.seconds
        while not over.wait(_LOOK_EVERY_S):
            if store.check([_BROKEN]):
                doing, words = json.loads(store.get(_BROKEN))
                self._end(group, doing, FAILED, words)
            if time.monotonic() > deadline:
                self._end(group, self._job.doing, *allowed.passed(self._job.doing))

    def _end(self, group: Group, doing: str, status: str, reason: str) -> None:
        culprit = [cell for cell in group if doing.startswith(f"{cell.series}:")] or list(group.cells)
        self._give_up([blank(cell, group, status, f"{doing.rpartition(': ')[2]}: {reason}") for cell in culprit])
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)
