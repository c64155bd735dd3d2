"""Cells on hosts of this machine, whose links can be cut and slowed, and which can be lost with all their ranks.

Two hosts with two ranks each. On each host a launcher has torch loaded and forks the ranks of one cell after the
other; the first host's keeps the store. Orders and answers are files, which all hosts see.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from ..hosts import Hosts, HostsFailed, Network, rate, unavailable
from ..ranks import RankContext
from ..ranks.fork_server_client import PRELOAD
from ..subjects import resolve
from .cells import Cell
from .injecting import ASKED, FAULT, STORE, read, write
from .judging import Judged, judged
from .running import Row
from .training import fork_store, run_cell

_HOSTS, _RANKS_A_HOST, _PORT = 2, 2, 29579
_RATE, _SLOW = "100mbit", "1mbit"
_LOST = 1  # the host that things happen to
_CUT_S = 1.0
_START_S, _CELL_S, _LOOK_S = 180.0, 90.0, 0.005
_ENDED_S = _CELL_S / 2  # a rank that has not ended by then is killed
_LAST_WORDS_S = 5.0  # before that it says where it stands, if its own watch has not ended it


def rows(subject: str, cells: Sequence[Cell]) -> Iterator[Row]:
    """The cells' rows; where there can be no hosts, each says why."""
    why = unavailable() if cells else ""
    if why or not cells:
        yield from (Row(cell, Judged("not run", why=why), 0.0) for cell in cells)
        return
    with tempfile.TemporaryDirectory(prefix="faults-", ignore_cleanup_errors=True) as folder:
        network = Network(_HOSTS, rate(_RATE))
        with Hosts(network) as hosts:
            ranks = HostedRanks(hosts, Path(folder))
            for cell in cells:
                yield ranks.row(cell, subject)


class HostedRanks:
    """Runs one cell after the other on hosts; a launcher that was lost with its host is started anew."""

    def __init__(self, hosts: Hosts, folder: Path) -> None:
        self._hosts, self._folder = hosts, folder
        self._number = 0
        for host in range(_HOSTS):
            self._launch(host)

    def _launch(self, host: int) -> None:
        with contextlib.suppress(OSError):
            (self._folder / f"ready{host}").unlink()
        address = self._hosts.network.addresses[0]
        self._hosts.start(host, [sys.executable, "-m", __name__, str(self._folder), str(host), address])

    def row(self, cell: Cell, subject: str) -> Row:
        """Run and judge one cell."""
        for host in range(_HOSTS):
            self._wait(self._folder / f"ready{host}", _START_S)
        begun = time.monotonic()
        self._number += 1
        here = self._folder / str(self._number)
        here.mkdir()
        write(self._folder / "order", {"number": self._number, "cell": cell.id, "subject": subject})
        lost = self._disturb(cell, here)
        exits: dict[int, int] = {}
        for host in range(_HOSTS):
            if host != lost:
                self._wait(here / f"host{host}", _CELL_S)
                exits |= {int(rank): status for rank, status in (read(here / f"host{host}") or {}).items()}
        self._mend(lost)
        return Row(cell, judged(cell, here, exits, subject), time.monotonic() - begun)

    def _disturb(self, cell: Cell, here: Path) -> int | None:
        """When a rank asks for it, do to its host what the cell says; the host that is gone for good, if one is."""
        hosts = self._hosts
        if not self._wait(here / ASKED, _CELL_S, instead=here / "host0"):
            return None
        if cell.kind == "link slowed":
            hosts.limit(_LOST, rate(_SLOW))
        else:
            hosts.cut(_LOST)
        if cell.kind == "host gone":
            hosts.signal(_LOST, signal.SIGKILL)
        write(here / FAULT, {"at": time.monotonic(), "pid": 0})
        if cell.kind == "link cut and healed":
            time.sleep(_CUT_S)
            hosts.heal(_LOST)
        return _LOST if cell.kind == "host gone" else None

    def _mend(self, lost: int | None) -> None:
        self._hosts.heal(_LOST)
        self._hosts.limit(_LOST, rate(_RATE))
        if lost is not None:
            self._launch(lost)

    def _wait(self, path: Path, limit_s: float, instead: Path | None = None) -> bool:
        """Wait for a file, or for the one that says that it will not come."""
        end = time.monotonic() + limit_s
        while not path.exists():
            if instead is not None and instead.exists():
                return False
            if time.monotonic() > end:
                raise HostsFailed(f"{path.name} did not come within {limit_s:g} s")
            time.sleep(_LOOK_S)
        return True


# -- on a host


def main(folder_name: str, host_name: str, address: str) -> NoReturn:
    """Serve the orders in a folder until the network is taken away, and this process with it."""
    folder, host = Path(folder_name), int(host_name)
    torch.set_num_threads(1)
    for name in PRELOAD:
        importlib.import_module(name)
    if host == 0:
        fork_store(folder / STORE, _PORT)  # not in this process: a rank forked beside its thread may wait for ever
    done = (read(folder / "order") or {"number": 0})["number"]
    write(folder / f"ready{host}", True)
    while True:  # the kernel ends it with the network
        order = read(folder / "order")
        if order is None or order["number"] == done:
            time.sleep(_LOOK_S)
            continue
        done = order["number"]
        here = folder / str(done)
        pids = {host * _RANKS_A_HOST + place: _forked(host, place, here, order, address) for place in (0, 1)}
        write(here / f"host{host}", {rank: _awaited(pid) for rank, pid in pids.items()})


def _forked(host: int, place: int, here: Path, order: Any, address: str) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            _become_rank(host * _RANKS_A_HOST + place, here, order, address)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    return pid


def _become_rank(rank: int, here: Path, order: Any, address: str) -> None:
    words = os.open(here / f"{rank}.words", os.O_WRONLY | os.O_CREAT, 0o600)
    os.dup2(words, 1)
    os.dup2(words, 2)
    faulthandler.dump_traceback_later(_ENDED_S - _LAST_WORDS_S)
    client = dist.TCPStore(address, _PORT, is_master=False, timeout=timedelta(seconds=60))
    store = dist.PrefixStore(f"cell{order['number']}", client)
    world = _HOSTS * _RANKS_A_HOST
    ctx = RankContext(rank, world, resolve(order["subject"]), "gloo", torch.device("cpu"), store)
    run_cell(ctx, order["cell"], str(here))


def _awaited(pid: int) -> int:
    """How a rank has ended; one that does not is killed."""
    end = time.monotonic() + _ENDED_S
    while time.monotonic() < end:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(_LOOK_S)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return 0


if __name__ == "__main__":
    main(*sys.argv[1:])
