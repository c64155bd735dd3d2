"""Under torchrun or Slurm, on one node or many: where this process stands."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

from conformance.bad_input import BadInput
from conformance.ranks.place import Place, placed


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
