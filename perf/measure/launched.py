"""Under torchrun or Slurm, on one node or many: where this process stands, and what the ranks besides rank 0 do.

Rank 0 is the driver, as without a launcher; every place has an agent, which forks a fresh rank for each run. So a cell
that fails or hangs is recorded with its witness, and the next ones are measured.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from conformance.bad_input import BadInput
from conformance.ranks.agent import DriverGone
from conformance.ranks.agent_group import AgentGroup, gathered
from conformance.ranks.backends import spread
from conformance.ranks.launched import serve as serve_place
from conformance.ranks.place import Place, end_with_parent, forget, placed


@dataclass(frozen=True)
class Spot:
    """This process's place in the job, and how many ranks its node has."""

    place: Place
    local_world: int

    @property
    def rank(self) -> int:
        return self.place.rank

    @property
    def world(self) -> int:
        return self.place.world


def spot(environ: Mapping[str, str]) -> Spot | None:
    """Where a launcher has put this process; None where there is none."""
    place = placed(environ)
    if place is not None:
        return Spot(place, _number(environ, "LOCAL_WORLD_SIZE") or 1)
    # a batch script has SLURM_PROCID too; only what srun starts is told the number of tasks of its step
    if "SLURM_PROCID" in environ and _number(environ, "SLURM_STEP_NUM_TASKS") > 1:
        rank, world = _number(environ, "SLURM_PROCID"), _number(environ, "SLURM_STEP_NUM_TASKS")
        here = _number(environ, "SLURM_STEP_TASKS_PER_NODE") or world
        port = _number(environ, "MASTER_PORT") or 20000 + _number(environ, "SLURM_JOB_ID") % 20000
        local = _number(environ, "SLURM_LOCALID")
        return Spot(Place(rank, world, _first_host(environ), port, local, None, "slurm", "0", False), here)
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


@contextmanager
def led(here: Spot) -> Iterator[AgentGroup]:
    """On rank 0: the agents of all places, and an environment without the launcher's variables."""
    forget()
    if here.place.launcher == "torchrun":
        end_with_parent(signal.SIGTERM)
    with gathered(here.place) as agent_group, spread(agent_group.here):
        yield agent_group


def serve(here: Spot) -> int:
    """On every other rank: serve rank 0 until it ends; returns the exit status."""
    forget()
    try:
        serve_place(here.place)
    except DriverGone:
        print(f"perf: rank {here.rank} lost rank 0, which leads; it ends.", file=sys.stderr)
        return 1
    return 0
