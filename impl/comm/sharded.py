"""Sums that are left on one rank each, their owner: by a reduce for each, or by one exchange of all ranks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist

from . import strict, trace
from .collectives import all_to_all
from .flat import copy_all, flat_views, real
from .pending import Pending, Watch
from .ranks import GroupRank, Team


class Owned(NamedTuple):
    """What one rank is to have the sum of."""

    owner: GroupRank
    values: torch.Tensor  # (numel,), contiguous
    label: str


class OwnerSums(ABC):
    """Sums over the team under way to their owners, in place. Its creation starts them; it is collective."""

    @abstractmethod
    def wait(self, watch: Watch | None) -> None:
        """Wait; afterwards the owner's values are sums, and all others are zero. May be called again."""


class Reduces(OwnerSums):
    """A reduce for each: on one host, and where reduces are pipelined (NCCL).

    On Gloo, faster than reduce-scatter, which that backend builds from an all-reduce.
    """

    def __init__(self, team: Team, owned: Sequence[Owned]) -> None:
        self._rank = team.rank
        self._under_way = [(each, reduce_to(team, each.values, each.owner, each.label)) for each in owned]

    def wait(self, watch: Watch | None) -> None:
        for each, pending in self._under_way:
            pending.wait(watch)
            if each.owner != self._rank:
                each.values.zero_()  # what a reduction leaves on other ranks is no sum
        self._under_way = []


#: What one rank sends another in one message. With longer ones Gloo uses one direction of a link at a time, for what a
#: rank is ready to receive is announced behind what it sends (2 hosts, 500 Mbit/s, 4 MiB: 48 to 64 ms at once, 34 so).
_MESSAGE_BYTES = 128 * 1024


class Exchange(OwnerSums):
    """Every rank sends each owner what it has for it, and owners add: every link carries each byte once.

    For a network on which a reduce is not pipelined (Gloo): there it moves as many bytes as an all-reduce.
    """

    def __init__(self, team: Team, owned: Sequence[Owned], label: str) -> None:
        self._rank, self._size = team.rank, team.size
        self._by_owner = [[real(each.values) for each in owned if each.owner == rank] for rank in team.members]
        nothing = real(owned[0].values)[:0]
        parts = [torch.cat(mine) if mine else nothing for mine in self._by_owner]
        step = _MESSAGE_BYTES // nothing.element_size()
        self._under_way = [
            self._send(team, [part[begin : begin + step] for part in parts], label)
            for begin in range(0, max(part.numel() for part in parts), step)
        ]

    def _send(self, team: Team, parts: Sequence[torch.Tensor], label: str) -> Pending:
        """Start sending each owner one message."""
        leaving = [part.numel() for part in parts]
        arriving = [leaving[team.rank]] * team.size
        received = parts[0].new_empty(sum(arriving))
        return all_to_all(team, received, torch.cat(list(parts)), label, arriving, leaving)

    def wait(self, watch: Watch | None) -> None:
        if not self._under_way:
            return
        received = [pending.wait(watch) for pending in self._under_way]
        self._under_way = []
        for values in (values for owned in self._by_owner for values in owned):
            values.zero_()
        if mine := self._by_owner[self._rank]:
            sums = [values.view(self._size, -1).sum(0) for values in received if values.numel()]
            copy_all(mine, flat_views(torch.cat(sums), mine))


def reduce_to(team: Team, buffer: torch.Tensor, owner: GroupRank, label: str) -> Pending:
    """Start summing ``buffer`` over the team; only ``owner`` gets the sum, elsewhere the content is lost."""
    if strict.enabled:
        gives = strict.addable(buffer, dist.ReduceOp.SUM)
        strict.agree(team, "reduce", label, buffer, f" to rank {owner}", gives)
    trace.note(label)
    work = dist.reduce(buffer, group_dst=owner, group=team.group, async_op=True)
    pending = Pending(label, buffer, work, team)
    if not strict.enabled:
        return pending
    return strict.confirmed(team, pending, alike=False, got=gives if team.rank == owner else None)
