"""The place that a launcher gave this process: torchrun's variables, which other launchers set as well.

RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT must all be there; LOCAL_RANK, if there, says which accelerator is ours.
"""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

import torch.distributed as dist

from ..bad_input import BadInput

NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
#: Of the launcher's own, and none of the ranks' business: each of their groups has its own rank and world.
_LAUNCHERS = (
    *NEEDED, "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK", "ROLE_WORLD_SIZE",
    "ROLE_NAME",
)  # fmt: skip
MEET_LIMIT_S = 300.0  # nodes of a job do not all start at the same moment


@dataclass(frozen=True)
class Place:
    """Which of the launched processes this is, and where all of them meet."""

    rank: int
    world: int
    address: str
    port: int
    local_rank: int | None
    nodes: int | None  # as far as the launcher says
    launcher: str
    attempt: str  # counts restarts: a new attempt finds the old one's keys in the launcher's store
    store_is_there: bool  # the launcher itself keeps the store

    @property
    def prefix(self) -> str:
        return f"joinery/{self.attempt}/"

    def store(self) -> dist.Store:
        """The launcher's store, or one that rank 0 keeps at the same address."""
        keeps = self.rank == 0 and not self.store_is_there
        limit = timedelta(seconds=MEET_LIMIT_S)
        try:
            listener = listening(self.address, self.port).detach() if keeps else None
            found = dist.TCPStore(
                self.address, self.port, is_master=keeps, timeout=limit, wait_for_workers=False,
                master_listen_fd=listener,
            )
        except (RuntimeError, ValueError, OSError) as error:
            raise BadInput(
                f"rank {self.rank} cannot meet the others at MASTER_ADDR={self.address}, MASTER_PORT={self.port}: "
                f"{_first_line(error)}. {REMEDY}"
            ) from error
        return dist.PrefixStore(self.prefix, found)


def listening(address: str, port: int, backlog: int = 128) -> socket.socket:
    """A socket that listens at the launcher's address, and at no other.

    Where that name is no address of this machine (a forwarded one, say), it is our end of the way to it. A launcher
    that names all addresses, 0.0.0.0, means this machine.
    """
    for family, _, _, _, (host, *_) in socket.getaddrinfo(address, port, type=socket.SOCK_STREAM):
        found = ipaddress.ip_address(str(host).partition("%")[0])
        ours = "localhost" if found.is_unspecified else str(host)
        for own in (ours, _our_end(family, ours, port)):
            try:
                return socket.create_server((own, port), family=family, backlog=backlog)
            except OSError as error:
                if error.errno != errno.EADDRNOTAVAIL:
                    raise
    raise OSError(errno.EADDRNOTAVAIL, f"{address} is no address of this machine, and no way leads to it")


def _our_end(family: int, host: str, port: int) -> str:
    """The address from which this machine would speak to a host; nothing is sent to find that out."""
    with socket.socket(family, socket.SOCK_DGRAM) as way:
        way.connect((host, port or 1))
        return str(way.getsockname()[0])


REMEDY = "Without a launcher, unset RANK and WORLD_SIZE"


def placed(environ: Mapping[str, str] = os.environ) -> Place | None:
    """What the environment says; None if no launcher started this process."""
    if not all(environ.get(name) for name in NEEDED):
        return None
    rank, world, port = (_number(environ, name) for name in ("RANK", "WORLD_SIZE", "MASTER_PORT"))
    if rank >= world:
        raise BadInput(f"RANK={rank} is not below WORLD_SIZE={world}. {REMEDY}")
    local = next((_number(environ, name) for name in ("LOCAL_RANK", "SLURM_LOCALID") if environ.get(name)), None)
    nodes = _number(environ, "GROUP_WORLD_SIZE") if environ.get("GROUP_WORLD_SIZE") else None
    elastic = "TORCHELASTIC_RUN_ID" in environ
    launcher = "torchrun" if elastic else "slurm" if "SLURM_JOB_ID" in environ else "environment"
    return Place(
        rank, world, environ["MASTER_ADDR"], port, local, nodes, launcher,
        environ.get("TORCHELASTIC_RESTART_COUNT", "0"), environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
    )  # fmt: skip


def _number(environ: Mapping[str, str], name: str) -> int:
    if not environ[name].isdecimal():
        raise BadInput(f"{name}={environ[name]!r} is no whole number. {REMEDY}")
    return int(environ[name])


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")


def forget() -> None:
    """Take the launcher's variables out of the environment that ranks will get."""
    for name in [*_LAUNCHERS, *(name for name in os.environ if name.startswith("TORCHELASTIC_"))]:
        os.environ.pop(name, None)


def end_with_parent(end: int) -> None:
    """Send this process the signal ``end`` when its parent is gone: a killed launcher ends nobody by itself."""
    parent = os.getppid()

    def look() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os.kill(os.getpid(), end)

    threading.Thread(target=look, name="parent-watch", daemon=True).start()
