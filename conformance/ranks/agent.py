"""An agent: the process at one place of a launched job, which forks a fresh rank for every run that it is told to join.

    driver -> agent    prepare (paths, modules, environment) · do (order, silence) · gather · dismiss · end
    agent -> driver    ready · state (active, silent, done) · outcome · free · broken (why)

The rank is a process of its own, forked from the agent's own zygote: whatever a check does, the agent lives.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from typing import Any

import torch

from . import silence
from .backends import NotRunnable, ensure_runnable
from .crew import Crew
from .files import Folder, size_of, write_whole
from .gather import gather
from .launch import ECHO
from .nursery import Nursery, NurseryFailed
from .order import Order

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
    _nursery: Nursery | None = None

    def serve(self) -> None:
        """Obey; ``DriverGone`` if the driver ends without saying so."""
        try:
            while True:
                match self._next():
                    case ("prepare", preparation):
                        self._prepare(preparation)
                    case ("do", order, silence_s):
                        if not self._do(order, silence_s):
                            return
                    case ("end",):
                        return
        finally:
            if self._nursery is not None:
                self._nursery.close()

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
            _ = self._ready_nursery().port  # waits until it has loaded everything
        except NurseryFailed as error:
            self._say("broken", str(error))
        else:
            self._say("ready")

    def _ready_nursery(self) -> Nursery:
        if self._nursery is not None and not self._nursery.alive:
            self._nursery.close()
            self._nursery = None
        if self._nursery is None:
            self._nursery = Nursery(self.prepared.preload)
        return self._nursery

    # --- one run ---

    def _do(self, order: Order, silence_s: float) -> bool:
        """Fork a rank, watch over it, hand in what became of it, end it. Whether the driver wants more."""
        try:
            ensure_runnable(order.backend, 1)
            with self._crew() as crew:
                if not self._carried_out(crew, self._mine(order), silence_s):
                    return False
        except (NurseryFailed, NotRunnable) as error:
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

    @contextlib.contextmanager
    def _crew(self) -> Iterator[Crew]:
        crew = Crew(self._ready_nursery(), 1, first=self.rank)
        try:
            yield crew
        finally:
            crew.dismiss()

    def _carried_out(self, crew: Crew, order: Order, silence_s: float) -> bool:
        folder = Folder(crew.folder.path / f"run{order.number}")
        folder.path.mkdir()
        write_whole(folder.order, pickle.dumps(order))
        crew.start(folder)
        if not self._attend(crew, folder, silence_s):
            return False
        (outcome,) = gather(crew, folder, order.ledger)
        self._say("outcome", outcome)
        if os.environ.get(ECHO):
            crew.echo()
        return self._next() == ("dismiss",)  # by now every rank has an outcome: nobody needs this one's sockets

    def _attend(self, crew: Crew, folder: Folder, silence_s: float) -> bool:
        """Tell the driver how the rank fares until it has heard enough. Whether it wants the outcome."""
        quiet = silence.Silence(silence_s)
        said, last = "", 0.0
        next_look = time.monotonic() + silence.LOOK_EVERY_S
        while not self.driver.poll(0):
            now = time.monotonic()
            if now >= next_look and silence.available():
                quiet.add(silence.look(set(crew.pids), now), size_of(folder.ledger(0)))
                next_look = now + silence.LOOK_EVERY_S
            state = DONE if crew.reported(0) or 0 in crew.ended else SILENT if quiet.fallen else ACTIVE
            if state != said or now - last > HEARTBEAT_S:
                self._say("state", state)
                said, last = state, now
            if state == DONE:
                break
            crew.listen(_LISTEN_S)
        return self._next() == ("gather",)
