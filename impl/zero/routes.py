"""Where the owners' parts lie in a flat tensor, and how they reach all ranks: plain arithmetic, without processes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

#: A message from one rank to the next costs about as much as sending so many bytes (0.1 ms at 1 Gbit/s).
_HOP_BYTES = 16 * 1024


@dataclass(frozen=True)
class FlatPlan:
    """Every owner's part of a flat tensor, part after part in rank order; and the equal shares of an all-gather.

    ``numels[r]`` elements belong to rank r. The tensor is ``length`` long: shares are equal, so up to ``world - 1``
    elements at its end belong to nobody.

        parts     | 0           | 1   | 2       |
        shares    | 0       | 1       | 2        |   what lies in another's share moves there before the all-gather
    """

    numels: tuple[int, ...]

    @property
    def world(self) -> int:
        return len(self.numels)

    @property
    def share(self) -> int:
        """Elements of each rank's share."""
        return -(-sum(self.numels) // self.world)

    @property
    def length(self) -> int:
        return self.share * self.world

    @cached_property
    def ends(self) -> tuple[int, ...]:
        """Where each owner's part ends."""
        return tuple(accumulate(self.numels))

    def part(self, rank: int) -> range:
        """What ``rank`` owns."""
        return range(self.ends[rank] - self.numels[rank], self.ends[rank])

    def share_of(self, rank: int) -> range:
        """What ``rank`` contributes to the all-gather."""
        return range(rank * self.share, (rank + 1) * self.share)

    def leaving(self, rank: int) -> list[int]:
        """Elements of this rank's part in each rank's share."""
        return [_common(self.part(rank), self.share_of(other)) for other in range(self.world)]

    def arriving(self, rank: int) -> list[int]:
        """Elements of each rank's part in this rank's share."""
        return [_common(self.part(other), self.share_of(rank)) for other in range(self.world)]

    @cached_property
    def excess(self) -> int:
        """The most elements that any rank sends or receives so that each holds its share; 0 where parts are shares."""
        ranks = range(self.world)
        moved = [sum(way(rank)) - way(rank)[rank] for way in (self.leaving, self.arriving) for rank in ranks]
        return max(moved)

    def gathers(self, element_bytes: int) -> bool:
        """Whether an all-gather is faster than a broadcast by each owner, on a network and without pipelining (Gloo).

        A broadcast climbs down a binary tree: who has the data sends it up to log2(world) times over its link, and so
        do those to whom it has come; two broadcasts run at a time. In an all-gather each link carries each byte once,
        whoever owns it. Between two ranks there is one link, and nothing to be gained.
        """
        if self.world < 3:
            return False
        owners, depth = sum(map(bool, self.numels)), (self.world - 1).bit_length()
        tree = max(max(self.numels), sum(self.numels) / 2) * depth * (depth + 1) / 2
        ring = self.excess + self.share * (self.world - 1)
        hops = self.world - 1 + bool(self.excess)
        return ring * element_bytes + hops * _HOP_BYTES < tree * element_bytes + owners * depth * _HOP_BYTES


def _common(one: range, other: range) -> int:
    return max(0, min(one.stop, other.stop) - max(one.start, other.start))
