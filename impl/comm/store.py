"""The store that the ranks of a group share: for messages between ranks that must not be collectives."""

from __future__ import annotations

import queue
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from .connections import own_connections
from .local_groups import global_ranks_of

_SLICES = 10  # of a wait for an answer


def shared_by(group: dist.ProcessGroup) -> dist.Store | None:
    """A store that all ranks of the group share; None where there is none.

    It is the one that the default group was set up with. None, too, for a group that torch.distributed was never told
    of: nobody knows whether its ranks share that store.

    torch has no public way to it. This is the only place that reaches for the private one; whoever uses the store must
    be able to do without.
    """
    if not global_ranks_of(group):
        return None
    try:
        store = dist.distributed_c10d._get_default_store()
    except (AttributeError, ValueError, RuntimeError):
        return None
    return dist.PrefixStore("joinery", store)


def of_own(store: dist.Store) -> dist.Store:
    """The same by a connection of its own, for a thread that must not wait until another has been answered."""
    if not isinstance(_innermost(store), dist.TCPStore):
        return store
    return store.clone()  # type: ignore[attr-defined, no-any-return]


class StoreWithDeadline:
    """A store whose answers are waited for in a thread, each for ``limit_s`` at most: a frozen host never answers.

    Time in which this process did not run itself (stopped, say) does not count. After the limit, and where its host
    has gone, it raises ``DistStoreError`` or another ``RuntimeError``. Without a limit it is asked like any other.
    """

    def __init__(self, store: dist.Store, limit_s: float | None) -> None:
        self._store = store
        self._limit_s = limit_s
        self._silent = False

    @property
    def timeout(self) -> timedelta:
        """For how long those who wait for a key look for it."""
        return self._store.timeout  # type: ignore[attr-defined, no-any-return]

    def check(self, keys: list[str]) -> bool:
        return bool(self._answer(self._store.check, keys))

    def get(self, key: str) -> bytes:
        return bytes(self._answer(self._store.get, key))

    def set(self, key: str, value: str) -> None:
        self._answer(self._store.set, key, value)

    def compare_set(self, key: str, expected: str, value: str) -> bytes:
        return bytes(self._answer(self._store.compare_set, key, expected, value))

    def delete_key(self, key: str) -> None:
        self._answer(self._store.delete_key, key)

    def _answer(self, ask: Callable[..., Any], *question: Any) -> Any:
        if self._limit_s is None:
            return ask(*question)
        if self._silent:
            raise self._complaint()
        answers: queue.SimpleQueue[tuple[Any, Exception | None]] = queue.SimpleQueue()

        def wait() -> None:
            try:
                answers.put((ask(*question), None))
            except Exception as error:
                answers.put((None, error))

        threading.Thread(target=wait, name="joinery: asks the store", daemon=True).start()
        for _ in range(_SLICES):  # a stop of this process uses up one of them at most
            with suppress(queue.Empty):
                answer, error = answers.get(timeout=self._limit_s / _SLICES)
                break
        else:
            self._silent = True
            raise self._complaint()
        if error is not None:
            raise error
        return answer

    def _complaint(self) -> dist.DistStoreError:
        return dist.DistStoreError(f"the group's store has not answered for {self._limit_s:g} s")


def own_address(store: dist.Store) -> str | None:
    """Where the other ranks of a world reach this process: our end of the way to the store that they share.

    None where the store does not say, and for a world within one process.
    """
    store = _innermost(store)
    if isinstance(store, dist.FileStore):
        return "127.0.0.1"
    if not isinstance(store, dist.TCPStore):
        return None
    try:
        found = socket.getaddrinfo(store.host, store.port)
    except OSError:
        return None
    for family, _, _, _, where in found:
        with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as way:  # there may be no way by this family
            way.connect(where)  # nothing is sent
            return str(way.getsockname()[0])
    return None


def port_of(store: dist.Store) -> int | None:
    """The port at which it is reached; None where it is no socket."""
    store = _innermost(store)
    return store.port if isinstance(store, dist.TCPStore) else None


def limit_silence(store: dist.Store, seconds: float) -> None:
    """Let a request to the store fail that the network does not take for so many seconds, instead of waiting for ever.

    A wait for a key goes on as long as it may. torch has no such limit, so it is set on this process's connections to
    the store; only on Linux.
    """
    port = port_of(store)
    if port is None:
        return
    with suppress(OSError):
        for _, connection in own_connections():
            with suppress(OSError):  # not connected
                if connection.getpeername()[1] == port:
                    limit_connection(connection, seconds)


def limit_connection(connection: socket.socket, seconds: float) -> None:
    """Let a connection end on which the other host acknowledges nothing for so many seconds; only on Linux."""
    option = getattr(socket, "TCP_USER_TIMEOUT", None)
    if option is not None:
        connection.setsockopt(socket.IPPROTO_TCP, option, int(seconds * 1000))


def _innermost(store: dist.Store) -> dist.Store:
    while isinstance(store, dist.PrefixStore):
        store = store.underlying_store
    return store
