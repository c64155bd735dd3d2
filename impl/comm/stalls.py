"""Notices that all ranks of a group wait for each other: their collectives do not match, and none will end.

A rank whose wait has lasted for half of the detection time tells all others, by the heartbeats, what it waits for and
how many bytes its connections have moved. Where all ranks of a group have stood so for half of the detection time, on
this group or another of the same ranks, and no byte has moved on any of them, nothing ever will. A rank that computes
does not wait, and a slow network moves bytes: neither is mistaken for a stall. Whoever notices one tells the others, to
whom its end would look as if bytes had moved. It costs nothing before a wait has lasted that long.
"""

from __future__ import annotations

import hashlib
import socket
import struct
import threading
from collections.abc import Collection, Container
from contextlib import suppress
from dataclasses import dataclass

from .connections import own_connections

#: a rank that has not repeated within this time that it waits may wait no longer
FRESH_S = 2.5
#: where the kernel's tcp_info holds the bytes that the other side has acknowledged, and those received
_BYTES_AT, _BYTES = 120, "QQ"


@dataclass(frozen=True)
class Wait:
    """What one rank waits for, as it tells it again and again while it does."""

    rank: int  # global
    members: str  # of the group on which it waits, whichever of theirs that is
    begun: float  # on that rank's clock: tells one wait from another
    place: str  # the collective, for people
    moved: int  # bytes, on its connections to other ranks


@dataclass
class _Seen:
    wait: Wait
    look: int  # of that rank: it counts them
    since: float
    last: float


class Waits:
    """The long waits of one world as this process knows them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_rank: dict[int, _Seen] = {}
        self._known: set[str] = set()  # marks of the stalls that are known
        self._declared: dict[str, list[Wait]] = {}  # stalls that others have noticed, by members; until it is raised

    def add(self, wait: Wait, look: int, now: float) -> bool:
        """Take note; False if that was known."""
        with self._lock:
            seen = self._by_rank.get(wait.rank)
            if seen is not None and look <= seen.look:
                return False
            since = seen.since if seen is not None and seen.wait == wait else now
            self._by_rank[wait.rank] = _Seen(wait, look, since, now)
            return True

    def stalled(self, whose: str, ranks: Collection[int], for_s: float, now: float) -> list[Wait]:
        """What these ranks wait for, if all of them have stood for so long on groups of theirs; else nothing."""
        with self._lock:
            if whose in self._declared:
                return self._declared.pop(whose)
            seen = [self._by_rank[rank] for rank in sorted(ranks) if rank in self._by_rank]
            together = max((each.since for each in seen), default=now)  # who has not repeated since may wait no longer
            stand = now - together >= for_s and all(
                each.wait.members == whose and each.last >= together and now - each.last < FRESH_S for each in seen
            )
            if not stand or len(seen) < len(ranks):
                return []
            waits = [each.wait for each in seen]
            self._known.add(mark(waits))
            return waits

    def declare(self, whose: str, its_mark: str) -> bool:
        """Another rank has noticed a stall, and tells no more: its connections end. False if that is known."""
        with self._lock:
            waits = [seen.wait for _, seen in sorted(self._by_rank.items()) if seen.wait.members == whose]
            if its_mark in self._known or mark(waits) != its_mark:
                return False
            self._known.add(its_mark)
            self._declared[whose] = waits
            return True


def mark(waits: list[Wait]) -> str:
    """A mark of one stall, in rank order of its waits: each of them has begun once only."""
    return hashlib.blake2b(repr([(wait.rank, wait.begun) for wait in waits]).encode(), digest_size=8).hexdigest()


def members(ranks: Collection[int]) -> str:
    """A mark of these ranks, equal for all groups of the same ones."""
    return hashlib.blake2b(repr(sorted(ranks)).encode(), digest_size=8).hexdigest()


def describe(waits: list[Wait], names: dict[int, str]) -> str:
    """What each rank waits for, those with one view together."""
    by_place: dict[str, list[str]] = {}
    for wait in waits:
        by_place.setdefault(wait.place, []).append(names[wait.rank])
    return "; ".join(f"{', '.join(who)}: {place}" for place, who in by_place.items())


def moved_bytes(but_for: Container[int], port: int | None) -> int | None:
    """How many bytes this process's TCP connections have moved; None where the system does not tell.

    ``but_for``: descriptors that do not count. ``port``: of the store, whose connections do not count either.
    """
    try:
        return sum(_moved(each, port) for descriptor, each in own_connections() if descriptor not in but_for)
    except OSError:
        return None


def _moved(connection: socket.socket, port: int | None) -> int:
    with suppress(OSError, struct.error):  # not connected, or a kernel that tells less
        if port in (connection.getsockname()[1], connection.getpeername()[1]):
            return 0
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
        return sum(struct.unpack_from(_BYTES, info, _BYTES_AT))
    return 0
