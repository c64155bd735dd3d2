"""An agent: the process at one place of a launched job, which forks a fresh rank for every run that it is told to join.

    driver -> agent    prepare (paths, modules, environment) · do (order, stall) · gather · dismiss · end
    agent -> driver    ready · state (active, silent, done) · outcome · free · broken (why)

The rank is a process of its own, forked from the agent's own fork server: whatever a check does, the agent lives.
"""

from __future__ import annotations

import os
import pickle
import sys
import time
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from typing import Any

import torch

from . import stall
from .backends import NotRunnable, ensure_runnable
from .files import Folder
from .fork_server_client import ForkServerClient, ForkServerFailed
from .gather import gather
from .launch import ECHO
from .order import Order
from .rank_pool import RankPool

ACTIVE, SILENT, DONE = "active", "silent", "done"
HEARTBEAT_S = 5.0
_LISTEN_S = 0.05  # the driver's words are looked for this often while a rank works


class DriverGone(Exception):
    """The driver has closed its end, or its machine does not answer any more."""


def tell(peer: Connection, *words: Any) -> None:
    """Send words as plain pickles: a connection's own way of sending would share a tensor's memory instead."""
    peer.send_bytes(pickle.dumps(words))


def hear(peer: Connection) -> tuple[Any, ...]:
    """The words of one ``tell``."""
    words: tuple[Any, ...] = pickle.loads(peer.recv_bytes())
    return words


@dataclass(frozen=True)
class Preparation:
    """What an agent needs to know before the first order."""

    sys_path: list[str]
    cwd: str
    preload: tuple[str, ...]
    defaults: dict[str, str]  # environment variables, where the agent's own has none


@dataclass
class Agent:
    """Serves the driver until it says end."""

    rank: int
    device: int  # number of the accelerator for this place
    driver: Connection
    prepared: Preparation = field(default_factory=lambda: Preparation([], "", (), {}))
    _fork_server: ForkServerClient | None = None

    def serve(self) -> None:
        """Obey; ``DriverGone`` if the driver ends without saying so."""
        try:
            while True:
                match self._next():
                    case ("prepare", preparation):
                        self._prepare(preparation)
                    case ("do", order, stall_s):
                        if not self._do(order, stall_s):
                            return
                    case ("end",):
                        return
        finally:
            if self._fork_server is not None:
                self._fork_server.close()

    # --- the driver ---

    def _next(self) -> tuple[Any, ...]:
        """The driver's next word. An idle agent waits as long as the driver lives: its end closes the connection."""
        try:
            while not self.driver.poll(1.0):
                continue
            return hear(self.driver)
        except (EOFError, OSError) as error:
            raise DriverGone from error

    def _say(self, *words: Any) -> None:
        try:
            tell(self.driver, *words)
        except OSError as error:
            raise DriverGone from error

    # --- preparation ---

    def _prepare(self, preparation: Preparation) -> None:
        self.prepared = preparation
        sys.path += [path for path in preparation.sys_path if path not in sys.path]
        try:
            _ = self._ready_fork_server().port  # waits until it has loaded everything
        except ForkServerFailed as error:
            self._say("broken", str(error))
        else:
            self._say("ready")

    def _ready_fork_server(self) -> ForkServerClient:
        if self._fork_server is not None and not self._fork_server.alive:
            self._fork_server.close()
            self._fork_server = None
        if self._fork_server is None:
            self._fork_server = ForkServerClient(self.prepared.preload)
        return self._fork_server

    # --- one run ---

    def _do(self, order: Order, stall_s: float) -> bool:
        """Fork a rank, watch over it, hand in what became of it, end it. Whether the driver wants more."""
        try:
            ensure_runnable(order.backend, 1)
            if not self._carried_out(self._mine(order), stall_s):
                return False
        except (ForkServerFailed, NotRunnable) as error:
            self._say("broken", str(error))
        else:
            self._say("free")
        return True

    def _mine(self, order: Order) -> Order:
        """The order as the rank of this place sees it, with this machine's environment and folder."""
        cwd = self.prepared.cwd if os.path.isdir(self.prepared.cwd) else os.getcwd()
        environ = {**self.prepared.defaults, **os.environ, **order.environ}
        device = self.device % max(1, torch.accelerator.device_count())  # some launchers show each process its own only
        return replace(order, first=self.rank, device=device, environ=environ, cwd=cwd)

    def _carried_out(self, order: Order, stall_s: float) -> bool:
        pool = RankPool(self._ready_fork_server(), 1, first=self.rank)
        try:
            with pool.started(order) as folder:
                if not self._attend(pool, folder, stall_s):
                    return False
                (outcome,) = gather(pool, folder, order.trace)
                self._say("outcome", outcome)
                if os.environ.get(ECHO):
                    pool.echo()
                return self._next() == ("dismiss",)  # by now every rank has an outcome: nobody needs its sockets
        finally:
            pool.dismiss()

    def _attend(self, pool: RankPool, folder: Folder, stall_s: float) -> bool:
        """Tell the driver how the rank fares until it has heard enough. Whether it wants the outcome."""
        quiet = stall.StallDetector(stall_s)
        said, last = "", 0.0
        next_look = time.monotonic() + stall.LOOK_EVERY_S
        while not self.driver.poll(0):
            now = time.monotonic()
            if now >= next_look and stall.available():
                quiet.add(stall.look(set(pool.pids), now), folder.written(0))
                next_look = now + stall.LOOK_EVERY_S
            state = DONE if not pool.unfinished() else SILENT if quiet.fallen else ACTIVE
            if state != said or now - last > HEARTBEAT_S:
                self._say("state", state)
                said, last = state, now
            if state == DONE:
                break
            pool.listen(_LISTEN_S)
        return self._next() == ("gather",)
