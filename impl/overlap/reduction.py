"""How one bucket's gradients are reduced in an overlapped step: by the user's hook, or each piece to its owner only."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from ..comm import streams
from ..comm.averaging import correction, divides_first
from ..comm.collectives import all_reduce
from ..comm.futures import wait_for_future
from ..comm.pending import Watch
from ..comm.ranks import GroupRank, Team
from ..comm.sharded import Exchange, Owned, OwnerSums, Reduces
from ..ddp.buckets import GradBucket
from ..ddp.kernels import divide
from .layout import BucketPart
from .plan import Piece
from .use import BucketUse

Hook = Callable[[Any, Any], "torch.futures.Future[torch.Tensor]"]


class Reduction(ABC):
    """A bucket's reduction from its start to its result."""

    #: what the communication hook returns to DDP
    future: torch.futures.Future[Any]

    @property
    def started(self) -> bool:
        """Whether it is under way, or waits for other buckets."""
        return True

    @abstractmethod
    def result(self, part: BucketPart, watch: Watch | None) -> torch.Tensor:
        """Wait for the end; the reduced bucket, flat (numel,) or sparse."""


class WrappedReduction(Reduction):
    """The wrapped hook's own reduction. What its future holds is what is stepped and what DDP delivers (HOOK-043)."""

    def __init__(self, hook: Hook, state: Any, bucket: GradBucket, team: Team) -> None:
        self._device = bucket.buffer().device
        self._team = team
        self.future = hook(state, bucket)
        if not all(callable(getattr(self.future, name, None)) for name in ("wait", "then", "done", "value")):
            raise RuntimeError(
                f"The wrapped communication hook returned {type(self.future).__name__} for bucket {bucket.index()} "
                "instead of a torch.futures.Future of a tensor."
            )
        factor = correction(hook, team.size, bucket.divisor())
        if factor != 1.0:
            self.future = self.future.then(lambda done: done.value() * factor)

    def result(self, part: BucketPart, watch: Watch | None) -> torch.Tensor:
        spec = part.bucket.spec
        label = f"the wrapped hook's future of bucket {spec.index}"
        value = wait_for_future(self.future, self._device, watch, self._team, label)
        if not isinstance(value, torch.Tensor) or (not spec.sparse and value.numel() != spec.numel):
            raise RuntimeError(
                f"The wrapped hook's future for bucket {spec.index} does not hold one tensor of {spec.numel} elements, "
                "shaped like the bucket. A collective's own future holds a list: chain "
                "`.then(lambda future: future.value()[0])`."
            )
        return value


class OwnerReduction(Reduction):
    """Each run of a piece is summed on its owner and nowhere else: half the bytes of an all-reduce.

    Works in place on slices of the bucket. Parameters that the optimizer does not have are reduced for everybody.
    """

    def __init__(self, bucket: GradBucket, part: BucketPart, team: Team) -> None:
        self._flat = bucket.buffer()
        if self._flat.is_sparse:
            raise RuntimeError("reduce_scatter=True cannot reduce sparse gradients: use the hook without it.")
        self._divisor = bucket.divisor()
        self._early = divides_first(self._flat.dtype)
        if self._early:
            divide(self._flat, self._divisor)
        devices: list[Any] | None = [self._flat.device] if streams.is_accelerated(self._flat.device) else None
        self.future = torch.futures.Future(devices=devices)
        self.owned = [owned for piece in part.pieces for owned in self._runs(part, piece)]
        self._strangers = [all_reduce(team, each.values, each.label) for each in self._runs(part, _strangers(part))]
        self._summed = [each.values for each in self.owned if each.owner == team.rank]
        self._summed += [pending.buffer for pending in self._strangers]
        #: set once they are under way, perhaps together with those of other buckets
        self.sums: OwnerSums | None = None

    @property
    def started(self) -> bool:
        return self.sums is not None

    def _runs(self, part: BucketPart, piece: Piece) -> Iterator[Owned]:
        slots = part.bucket.spec.slots
        for first, end in piece.runs():
            begin, until = slots[first].offset, slots[end - 1].offset + slots[end - 1].numel
            label = f"bucket {part.bucket.spec.index}, elements {begin} to {until}"
            yield Owned(GroupRank(piece.owner), self._flat[begin:until], label)

    def result(self, part: BucketPart, watch: Watch | None) -> torch.Tensor:
        assert self.sums is not None
        self.sums.wait(watch)
        for pending in self._strangers:
            pending.wait(watch)
        if not self._early:
            for values in self._summed:
                divide(values, self._divisor)
        self.future.set_result(self._flat)
        return self._flat


def _strangers(part: BucketPart) -> Piece:
    """The places of parameters that the optimizer does not have. They have no owner."""
    return Piece(-1, tuple(place for place, index in enumerate(part.members) if index < 0))


class OwnerReducing:
    """Reduces bucket after bucket to the owners; those of one window together, if they are to be exchanged."""

    def __init__(self) -> None:
        self._window: list[OwnerReduction] = []

    def __call__(self, _state: Any, bucket: GradBucket, part: BucketPart, team: Team) -> Reduction:
        if bucket.index() == 0:
            self._window = []  # perhaps of an iteration that was given up
        reduction = OwnerReduction(bucket, part, team)
        self._window.append(reduction)
        if part.closes:
            self._start(part, team)
        return reduction

    def _start(self, last: BucketPart, team: Team) -> None:
        window, self._window = self._window, []
        owned = [each for reduction in window for each in reduction.owned]
        number = last.bucket.spec.index
        label = f"buckets {number - len(window) + 1} to {number}, to their owners"
        sums = Exchange(team, owned, label) if owned and last.exchanged else Reduces(team, owned)
        for reduction in window:
            reduction.sums = sums


@dataclass
class InFlight:
    """One bucket between the start of its reduction and the start of its broadcasts."""

    part: BucketPart
    reduction: Reduction
    #: who uses the bucket's parameters; None where all are used, and until that is asked
    use: BucketUse | None = None
    #: once the reduction is over: by place, the gradients that this rank is to step with
    gradients: dict[int, torch.Tensor] = field(default_factory=dict)
    flat: torch.Tensor | None = None
    #: earlier gradients that parameters which nobody uses keep, outside of ``flat``
    kept: list[torch.Tensor] = field(default_factory=list)
