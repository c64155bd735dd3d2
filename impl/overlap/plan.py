"""Which rank steps what in an overlapped step: a frozen plan over DDP's buckets, without processes.

Owners are known by parameter before the first step, from the buckets that DDP is expected to settle on. Where it
settles on others (its graph uses the parameters in another order than they are registered in), each state moves once,
to the owner that those buckets have.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

#: Global indices of the optimizer's parameters, in the order in which a bucket holds them.
Members = tuple[int, ...]


@dataclass(frozen=True)
class Piece:
    """What one rank owns of one bucket: places in the bucket, ascending."""

    owner: int
    places: tuple[int, ...]

    def runs(self) -> list[tuple[int, int]]:
        """The places as half-open ranges of neighbours."""
        ranges: list[tuple[int, int]] = []
        for place in self.places:
            if ranges and ranges[-1][1] == place:
                ranges[-1] = (ranges[-1][0], place + 1)
            else:
                ranges.append((place, place + 1))
        return ranges


@dataclass(frozen=True)
class OverlapPlan:
    """Present buckets over fixed owners.

    ``buckets[k][j]`` is the optimizer's index of the j-th parameter of bucket k; -1 for a parameter that the optimizer
    does not have (it is reduced and otherwise left alone). ``owners[i]`` is the group rank that steps parameter i.
    """

    buckets: tuple[Members, ...]
    owners: tuple[int, ...]

    def __post_init__(self) -> None:
        placed = [index for bucket in self.buckets for index in bucket if index >= 0]
        if len(placed) != len(set(placed)):
            raise AssertionError("a parameter stands in two buckets")
        if any(index >= len(self.owners) for index in placed):
            raise AssertionError("a bucket holds a parameter without an owner")
        if not all(self.buckets):
            raise AssertionError("a bucket without parameters (HOOK-016)")

    def pieces(self, bucket: int) -> tuple[Piece, ...]:
        """The pieces of a bucket in ascending rank order: the order in which they are sent (HOOK-026)."""
        places: dict[int, list[int]] = {}
        for place, index in enumerate(self.buckets[bucket]):
            if index >= 0:
                places.setdefault(self.owners[index], []).append(place)
        return tuple(Piece(owner, tuple(places[owner])) for owner in sorted(places))


def windows(owners: Sequence[Iterable[int]], world: int) -> list[range]:
    """Consecutive buckets that are best published together over a network; ``owners``: the ranks with a part of each.

    A window ends as soon as every rank owns a part, so that all links are used.
    """
    found: list[range] = []
    begin, seen = 0, set[int]()
    for end, ranks in enumerate(owners, 1):
        seen.update(ranks)
        if len(seen) == world or end == len(owners):
            found.append(range(begin, end))
            begin, seen = end, set()
    return found


def whole_buckets(buckets: Sequence[Members], world: int) -> dict[int, int]:
    """Owner by parameter: bucket k belongs to rank k modulo the number of ranks (HOOK-038)."""
    return {index: place % world for place, bucket in enumerate(buckets) for index in bucket if index >= 0}


def sharded_buckets(buckets: Sequence[Members], numels: Sequence[int], world: int) -> dict[int, int]:
    """Owner by parameter when buckets are cut into contiguous pieces below 1/world of all that they hold (HOOK-039).

    Smallest bucket first; a piece goes to the least loaded rank without a piece of that bucket, and once every rank has
    one, to the least loaded of all (HOOK-040). A parameter that reaches the limit is a piece by itself.
    """
    owned = [tuple(index for index in bucket if index >= 0) for bucket in buckets]
    sizes = [sum(numels[index] for index in bucket) for bucket in owned]
    limit = sum(sizes) / world
    loads = [0] * world
    owners: dict[int, int] = {}
    for place in sorted(range(len(owned)), key=lambda k: sizes[k]):
        free = set(range(world))
        for piece in cut(owned[place], numels, limit):
            owner = min(free or range(world), key=lambda rank: (loads[rank], rank))
            free.discard(owner)
            loads[owner] += sum(numels[index] for index in piece)
            owners.update(dict.fromkeys(piece, owner))
    return owners


def cut(bucket: Iterable[int], numels: Sequence[int], limit: float) -> list[Members]:
    """Contiguous pieces of a bucket, each as long as it can be below ``limit`` elements."""
    pieces: list[list[int]] = []
    room = 0.0
    for index in bucket:
        if not pieces or numels[index] >= room:
            pieces.append([])
            room = limit
        pieces[-1].append(index)
        room -= numels[index]
    return [tuple(piece) for piece in pieces]
