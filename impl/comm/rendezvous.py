"""How processes of a world find each other before they are connected: what each leaves in the store and reads there.

    heartbeats/token         of this world; without it nobody is listened to
    heartbeats/RANK          where a process listens, with a number that grows as its sign of life; of one that has left
                             before all had met it, how it ended

One that can neither be met nor be seen there for the detection time has been cut off, and so has one to which the store
does not answer. Two threads come here: one looks, which may have to wait for the store; the other counts the time.
"""

from __future__ import annotations

import json
import secrets
import threading
from collections.abc import Collection
from contextlib import suppress

import torch.distributed as dist

from . import store as stores
from .losses import End, Loss
from .processes import GONE, STOPPED, Process

_STORE_LIMIT = 0.8  # of the detection time: who looks into the store meanwhile must be back in time
_LAST_ANSWER_S = 1.0

Address = tuple[str, int]


def store_of(world: dist.ProcessGroup, detection_s: float) -> tuple[dist.Store, str] | None:
    """The store that the processes of a world share, which keeps nobody waiting, and this one's address for the others.

    None where there is none, or no way between them.
    """
    store = stores.shared_by(world)
    if store is None or (address := stores.own_address(store)) is None:
        return None
    stores.limit_silence(store, detection_s * _STORE_LIMIT)
    with suppress(RuntimeError):  # it has gone: that is found out by the first that is asked of it
        # a new connection to a host that is cut off, or has frozen, would wait for very long
        _with_deadline(store, detection_s).check(["heartbeats/token"])
        store = stores.of_own(store)
        stores.limit_silence(store, detection_s * _STORE_LIMIT)
    return store, address


def _with_deadline(store: dist.Store, detection_s: float) -> stores.StoreWithDeadline:
    return stores.StoreWithDeadline(store, None if stores.port_of(store) is None else detection_s * _STORE_LIMIT)


class Rendezvous:
    """One process's part of it, until it has met its neighbours."""

    def __init__(self, rank: int, process: Process, store: dist.Store, detection_s: float) -> None:
        self._rank = rank
        self._process = process
        self._detection_s = detection_s
        self.store_port = stores.port_of(store)
        #: nobody else's until it is this world's
        self.token = secrets.token_hex(16)
        self._store: dist.Store | None = store  # None once it is lost, all are met, or this process ends
        self._has_lost_store = False
        self._asking = threading.Lock()  # held while the store is asked
        self._ran_s = 0.0  # so long this process has run
        self._looked_s = 0.0  # and so long when the last look began
        self._signs = 0  # of life, so far
        self._stopped_s: dict[int, float] = {}  # by rank
        self._last_sign: dict[int, int] = {}  # that a rank has given

    @property
    def cut_off(self) -> bool:
        """Whether the store was lost before all were met, or does not answer: nobody knows what becomes of others."""
        return self._has_lost_store or self._ran_s - self._looked_s >= self._detection_s

    @property
    def is_over(self) -> bool:
        """Whether nothing is asked any more."""
        return self._store is None

    def publish(self, store: dist.Store, address: Address) -> None:
        """Say where this process listens; who calls knows the token, as this process does from now on."""
        asked, mine = _with_deadline(store, self._detection_s), self._process
        self._listens = [*address, mine.host, mine.machine, mine.pid]
        try:
            self.token = asked.compare_set("heartbeats/token", "", self.token).decode()
            self._give_sign(asked)
        except RuntimeError:
            self._give_up()

    def _give_sign(self, store: dist.Store | stores.StoreWithDeadline) -> None:
        self._signs += 1
        store.set(f"heartbeats/{self._rank}", json.dumps([*self._listens, self._signs]))

    def ran(self, seconds: float) -> None:
        """This process has run for so long since it was said last."""
        self._ran_s += seconds

    def look(self, missing: Collection[int]) -> tuple[list[Loss], dict[int, Address]]:
        """Give a sign of life, and look after the ranks that are not met: who has ended, and where others listen."""
        now_s = self._ran_s
        passed_s, self._looked_s = now_s - self._looked_s, now_s
        try:
            with self._asking:
                found = self._asked(missing, passed_s)
        except RuntimeError:  # the store's host is gone; those that are met are met
            self._give_up()
            return [], {}
        listening = {rank: each for rank, each in found.items() if not isinstance(each, Loss)}
        return [each for each in found.values() if isinstance(each, Loss)], listening

    def end(self) -> None:
        """All are met."""
        self._store = None

    def leave(self, loss: Loss) -> None:
        """This process ends, and leaves word for those that have not met it, and will not any more.

        An answer that came when the interpreter is gone would end the process by force (signal 6), so it is awaited.
        """
        if self._asking.acquire(timeout=_LAST_ANSWER_S):
            store, self._store = self._store, None
            with suppress(RuntimeError):  # the store's host is gone
                if store is not None:
                    store.set(f"heartbeats/{self._rank}", json.dumps({"loss": loss.as_json()}))
            self._asking.release()

    def _asked(self, missing: Collection[int], passed_s: float) -> dict[int, Loss | Address]:
        """By rank that has left anything in the store: how it has ended, or where it listens."""
        store = self._store
        if store is None:
            return {}
        self._give_sign(store)
        there = [rank for rank in missing if store.check([f"heartbeats/{rank}"])]
        return {rank: self._left_by(store, rank, passed_s) for rank in there}

    def _left_by(self, store: dist.Store, rank: int, passed_s: float) -> Loss | Address:
        """How a rank has ended, as it has said itself or as its process is seen to be gone; else where it listens."""
        said = json.loads(store.get(f"heartbeats/{rank}"))
        if isinstance(said, dict):
            return Loss.from_json(said["loss"])
        host, port, *where, sign = said
        process = Process(*where)
        if self._process.is_on_same_machine(process):
            state = process.signs().state
            if state in GONE:
                said = json.loads(store.get(f"heartbeats/{rank}"))  # it may have said why between the two looks
                closed = Loss(rank, End.CLOSED, str(process), "", self._rank)
                return Loss.from_json(said["loss"]) if isinstance(said, dict) else closed
            is_stopped = state in STOPPED
        else:
            is_stopped = sign == self._last_sign.get(rank)
            self._last_sign[rank] = sign
        # one that only cannot be reached is not
        self._stopped_s[rank] = self._stopped_s.get(rank, 0.0) + passed_s if is_stopped else 0.0
        if self._stopped_s[rank] >= self._detection_s:
            return Loss(rank, End.SILENT, str(process), "", self._rank)
        return str(host), int(port)

    def _give_up(self) -> None:
        self._store, self._has_lost_store = None, True
