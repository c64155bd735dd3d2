"""Publishing: after a step every owner's parameters reach all ranks, in a handful of flat messages.

Between processes of one host by a broadcast of each owner (2 ranks, 4M elements a shard: 15 ms against 28 of an
all-gather; 4 ranks, 2M: 39 against 67). On a network of three hosts or more by one all-gather of equal shares (4 hosts,
4 MiB, 200 Mbit/s: 134 ms against 256).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import is_not
from typing import Any

import torch

from ..comm.flat import PlacedTensors
from ..comm.ranks import GroupRank
from .memory import memory_of_its_own
from .shard import Shard, is_of_torch
from .transfer import Broadcasts, Gathering, Publication, Transfer, gathers, plan_of

#: Parameters of at least this many bytes travel in place; smaller ones share a staging buffer with their neighbours.
#: Below it two copies cost less than a collective of one's own; above it they cost more, and memory too.
IN_PLACE_BYTES = 1 << 20

#: What travels together: parameters on one device, of one dtype. A program may move or cast them between steps.
Kind = tuple[torch.device, torch.dtype]


def forms_of(parameters: Sequence[torch.Tensor]) -> list[tuple[torch.device, torch.dtype, torch.Size]]:
    """What messages are made for."""
    return [(parameter.device, parameter.dtype, parameter.shape) for parameter in parameters]


class Publisher:
    """Brings every owner's parameters to all ranks. The transfers are made anew when owners or parameters change."""

    def __init__(self, shard: Shard, as_views: bool) -> None:
        self._shard = shard
        self._as_views = as_views
        # the transfers of a step; None until the first
        self._transfers: Transfers | None = None

    def transfers(self) -> Transfers:
        """The transfers for the present owners and parameters."""
        if self._transfers is None or self._transfers.stale():
            self._transfers = Transfers(self._shard, self._as_views)
        return self._transfers

    def publish(self) -> None:
        """Send the owners' present values to everyone, and wait until all have arrived."""
        self.transfers().publish()

    def between_evaluations(
        self, closure: Callable[..., Any], check: Callable[[bool], bool] | None = None
    ) -> Callable[..., Any]:
        """``closure``, for local optimizers that evaluate it several times in a step, or move parameters before: what
        their owners have made of these since the last time reaches all ranks first.

        ``check`` is told before that whether they are known to have moved, and says whether all ranks take part.
        """
        shard, evaluated = self._shard, False
        if is_of_torch(shard.optim):  # one that may be sharded evaluates it once, and first
            return closure
        if check is not None:
            shard.look_at_parameters()  # the program may have changed them since the last step
        before = [] if check is None else [parameter.clone() for parameter in _own(shard)]

        def evaluate(*args: Any, **kwargs: Any) -> Any:
            nonlocal evaluated
            if check is None or check(evaluated or not all(map(_same, before, _own(shard)))):
                shard.look_at_trainability()  # the closure may have thawed some
                self.publish()
            evaluated = True
            return closure(*args, **kwargs)

        return evaluate


@torch.no_grad()
def _bring(publications: Sequence[Publication]) -> None:
    """Start all of them, and wait until everything has arrived."""
    try:
        for publication in publications:
            publication.start()
        for publication in publications:
            publication.advance()
        for publication in publications:
            publication.finish()
    except BaseException:
        for publication in publications:
            publication.give_up()
        raise


def _own(shard: Shard) -> list[torch.Tensor]:
    """The parameters that this rank owns."""
    return [parameter.detach() for parameter in shard.owned_by(shard.team.rank)]


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether both hold the same values, what is no number included."""
    return torch.equal(one, other) or (one.shape == other.shape and torch.allclose(one, other, 0, 0, equal_nan=True))


class Transfers:
    """The messages of one layout: which parameters are sent, by whom, in which order.

    The shard says who owns what, and which parameters are sent at all; both must be equal on every rank. With
    ``as_views`` each owner's parameters of a kind become views of one flat tensor, which travels in place if all of
    them lie row by row; those that have memory in common keep it.
    """

    def __init__(self, shard: Shard, as_views: bool) -> None:
        self._shard = shard
        self._team = shard.team
        self._moved = PlacedTensors()  # with views: the parameters in flat tensors
        # by kind: what each owner sends; with views also its flat tensor, and what that holds
        self._shards: dict[Kind, list[list[torch.Tensor]]] = {}
        self._flats: dict[tuple[Kind, int], tuple[torch.Tensor, list[torch.Tensor]]] = {}
        # what is sent, and that for which the messages are made
        parameters = shard.parameters()
        self._sent = [parameter for parameter, goes in zip(parameters, shard.sent, strict=True) if goes]
        self._made_for = shard.team, shard.plan, shard.sent
        self._forms = forms_of(self._sent)
        # made at the first use, because to choose one is a collective
        self._publications: list[Publication] | None = None
        for parameter, owner, goes in zip(parameters, shard.plan.owners, shard.sent, strict=True):
            if goes and parameter.numel():
                kind = parameter.device, parameter.dtype
                self._shards.setdefault(kind, [[] for _ in self._team.members])[owner].append(parameter)
        if as_views:
            alone = memory_of_its_own(parameters)
            for kind, owned in self._shards.items():
                for owner, members in enumerate(owned):
                    movable = [member for member in members if id(member) in alone]
                    if movable:
                        self._flats[kind, owner] = self._moved.move(movable), movable

    def publish(self) -> None:
        """Send the owners' present values to everyone, and wait until all have arrived."""
        if self._team.size == 1:
            return
        if self._publications is None:
            self._publications = [self._publication(kind) for kind in self._shards]
        _bring(self._publications)

    def publish_of(self, owner: GroupRank) -> None:
        """Send one owner's present values to everyone, and wait until they have arrived."""
        for kind in self._shards:
            _bring([Broadcasts(self._transfers_of(owner, kind))])

    def stale(self) -> bool:
        """Whether owners or what is sent have changed, or somebody has cast, reshaped or moved a parameter away from
        its flat tensor (``p.data = ...``)."""
        shard = self._shard
        present = shard.team, shard.plan, shard.sent
        return any(map(is_not, present, self._made_for)) or self._moved.stale or forms_of(self._sent) != self._forms

    def _publication(self, kind: Kind) -> Publication:
        owned = self._shards[kind]
        plan = plan_of(owned)
        if gathers(self._team, plan, next(member for members in owned for member in members)):
            return Gathering(self._team, plan, owned, f"zero: parameters on {kind[0]}")
        transfers = [each for rank in self._team.members for each in self._transfers_of(GroupRank(rank), kind)]
        return Broadcasts(transfers)

    def _transfers_of(self, owner: GroupRank, kind: Kind) -> list[Transfer]:
        label = f"zero: parameters of rank {owner} on {kind[0]}"
        members = self._shards[kind][owner]
        transfers = []
        if (kind, owner) in self._flats:
            flat, inside = self._flats[kind, owner]
            row_by_row = all(member.is_contiguous() for member in inside)  # else it may lie otherwise on another rank
            transfers.append(Transfer(self._team, owner, inside, label, flat if row_by_row else None))
            moved = set(map(id, inside))
            members = [member for member in members if id(member) not in moved]
        small = [member for member in members if member.nbytes < IN_PLACE_BYTES]
        large = [member for member in members if member.nbytes >= IN_PLACE_BYTES]
        batches = ([small] if small else []) + [[member] for member in large]
        return transfers + [Transfer(self._team, owner, batch, label) for batch in batches]
