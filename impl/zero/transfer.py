"""The owners' parameters on their way to all ranks: by a broadcast of each owner, or gathered in equal shares."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Container, Sequence

import torch

from ..comm.collectives import all_gather, all_to_all, broadcast, each_once
from ..comm.flat import copy_all, flat_views, new_flat, note_change
from ..comm.pending import Pending, Watch
from ..comm.placement import on_one_host
from ..comm.ranks import GroupRank, Team
from .memory import memory_of_its_own
from .routes import FlatPlan


class Transfer:
    """A broadcast of some parameters of one owner to the team. Made once, used in every step.

    The members travel in one flat buffer. A single contiguous member is its own buffer; members that are views of
    ``flat`` need no copy either. Packing and unpacking are local affairs: the collective is the same on every rank.
    """

    __slots__ = ("_buffer", "_flat", "_pending", "_views", "label", "members", "owner", "team")

    def __init__(
        self,
        team: Team,
        owner: GroupRank,
        members: Sequence[torch.Tensor],
        label: str,
        flat: torch.Tensor | None = None,  # members are consecutive views of this one
    ) -> None:
        self.team = team
        self.owner = owner
        self.members = members
        self.label = label
        self._flat = flat
        # staging buffer, as long as all members together; made at the first use that needs one
        self._buffer: torch.Tensor | None = None
        self._views: list[torch.Tensor] = []
        # set between start() and finish()
        self._pending: Pending | None = None

    def start(self) -> None:
        """Start the broadcast of the owner's present values. Call on every rank, in the same order of transfers."""
        buffer, staged = self._target()
        if staged and self.team.rank == self.owner:
            copy_all(self._views, self.members)
        self._pending = broadcast(self.team, buffer, self.owner, self.label)

    def finish(self, watch: Watch | None = None) -> None:
        """Wait for the broadcast; afterwards the members hold the owner's values on every rank."""
        if self._pending is None:
            raise AssertionError(f"{self.label}: finish() without start()")
        pending = self._pending
        pending.wait(watch)
        self._pending = None
        if self.team.rank == self.owner:
            return
        if pending.buffer is self._buffer:
            _receive(self.members, self._views)
        else:
            note_change(self.members)

    def give_up(self, movable: Container[int]) -> None:
        """Give the members of a message that has not come other memory, if their ids are among the movable ones."""
        if self._pending is None or self._pending.buffer is self._buffer:
            return
        for member in self.members:
            if id(member) in movable:
                member.data = member.detach().clone()

    def _target(self) -> tuple[torch.Tensor, bool]:
        """The tensor to send, and whether it is the staging buffer."""
        if self._flat is not None:
            return self._flat, False
        first, *others = self.members
        if not others and first.is_contiguous() and not first.is_conj():  # its memory holds the conjugate
            return first.detach(), False
        if self._buffer is None:
            self._buffer = new_flat(sum(member.numel() for member in self.members), first.dtype, first.device)
            self._views = flat_views(self._buffer, self.members)
        return self._buffer, True


class Publication(ABC):
    """Brings some parameters from their owners to the team. Made once, used in every step; its calls are collective."""

    @abstractmethod
    def start(self) -> None:
        """Start sending the owners' present values."""

    @abstractmethod
    def advance(self, watch: Watch | None = None) -> None:
        """Do what can be done once the first messages have come. Between ``start`` and ``finish``, at most once."""

    @abstractmethod
    def finish(self, watch: Watch | None = None) -> None:
        """Wait; afterwards the parameters hold their owners' values on every rank."""

    def give_up(self) -> None:  # noqa: B027
        """Something has failed. What still arrives, when an owner that was lost goes on, must not reach parameters."""


class Broadcasts(Publication):
    """Every owner sends its own to all: for processes of one host, and where broadcasts are pipelined (NCCL)."""

    def __init__(self, transfers: Sequence[Transfer]) -> None:
        self.transfers = transfers

    def start(self) -> None:
        for transfer in self.transfers:
            transfer.start()

    def advance(self, watch: Watch | None = None) -> None:
        """Nothing: there is one kind of message."""

    def finish(self, watch: Watch | None = None) -> None:
        for transfer in self.transfers:
            transfer.finish(watch)

    def give_up(self) -> None:
        movable = memory_of_its_own([member for transfer in self.transfers for member in transfer.members])
        for transfer in self.transfers:
            transfer.give_up(movable)


class Gathering(Publication):
    """One all-gather of equal shares, before which what an owner has in others' shares moves there.

    On a network without pipelined broadcasts (Gloo): every link carries each byte once, whoever owns how much.
    """

    def __init__(
        self,
        team: Team,
        plan: FlatPlan,
        owned: Sequence[Sequence[torch.Tensor]],  # by owner
        label: str,
        flat: torch.Tensor | None = None,  # (plan.length,), of which ``owned`` are consecutive views
    ) -> None:
        self._team = team
        self._plan = plan
        self._owned = owned
        self._label = label
        self._flat = flat
        self._staged = flat is None
        self._views: list[list[torch.Tensor]] = []  # of a staging buffer, by owner
        # what is under way; both None outside of start() and finish()
        self._spreading: Pending | None = None
        self._gathering: Pending | None = None

    def start(self) -> None:
        flat = self._flat
        if flat is None:
            first = next(member for members in self._owned for member in members)
            flat = self._flat = new_flat(self._plan.length, first.dtype, first.device)
            parts = [part_of(flat, self._plan.part(rank)) for rank in self._team.members]
            self._views = [flat_views(part, members) for part, members in zip(parts, self._owned, strict=True)]
        rank = self._team.rank
        if self._staged and self._owned[rank]:
            copy_all(self._views[rank], self._owned[rank])
        if not self._plan.excess:
            self._gather(flat)
            return
        arriving, leaving = self._plan.arriving(rank), self._plan.leaving(rank)
        into, out_of = part_of(flat, self._plan.share_of(rank)), part_of(flat, self._plan.part(rank))
        into, label = into[: sum(arriving)], f"{self._label}, to equal shares"
        if flat.is_complex():
            arriving, leaving = [2 * numel for numel in arriving], [2 * numel for numel in leaving]
        self._spreading = all_to_all(self._team, _real(into), _real(out_of), label, arriving, leaving)

    def advance(self, watch: Watch | None = None) -> None:
        if self._spreading is None:
            return
        spreading, self._spreading = self._spreading, None
        spreading.wait(watch)
        assert self._flat is not None
        self._gather(self._flat)

    def _gather(self, flat: torch.Tensor) -> None:
        share = part_of(flat, self._plan.share_of(self._team.rank))
        self._gathering = all_gather(self._team, _real(flat), _real(share), self._label)

    def finish(self, watch: Watch | None = None) -> None:
        self.advance(watch)
        if self._gathering is None:
            raise AssertionError(f"{self._label}: finish() without start()")
        gathering, self._gathering = self._gathering, None
        gathering.wait(watch)
        for rank, members in enumerate(self._owned):
            if not members or rank == self._team.rank:
                continue
            if self._staged:
                _receive(members, self._views[rank])
            else:
                note_change(members)


def plan_of(owned: Sequence[Sequence[torch.Tensor]]) -> FlatPlan:
    """The plan of parameters by owner."""
    return FlatPlan(tuple(sum(member.numel() for member in members) for members in owned))


def gathers(team: Team, plan: FlatPlan, like: torch.Tensor) -> bool:
    """Whether parameters of these owners, of the dtype and on the device of ``like``, are better gathered than sent.

    Call it on every rank alike: the first call for a group may be a collective.
    """
    return like.device.type == "cpu" and plan.gathers(like.element_size()) and not on_one_host(team, like.device)


def part_of(flat: torch.Tensor, places: range) -> torch.Tensor:
    """The elements of a flat tensor at these places."""
    return flat[places.start : places.stop]


def _receive(members: Sequence[torch.Tensor], views: Sequence[torch.Tensor]) -> None:
    """Copy what has come into the parameters: together, or one by one where some are expanded, or conjugates."""
    try:
        copy_all(members, views)
    except RuntimeError:
        for member, view in zip(members, views, strict=True):
            stored = each_once(member)
            stored.copy_(view[tuple(map(slice, stored.shape))])


def _real(flat: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(flat).view(-1) if flat.is_complex() else flat
