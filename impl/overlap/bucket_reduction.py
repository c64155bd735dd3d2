"""How one bucket's gradients are reduced in an overlapped step: by the user's hook, or each piece to its owner only."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from ..comm import streams
from ..comm.averaging import divides_first
from ..comm.collectives import all_reduce
from ..comm.futures import wait_for_future
from ..comm.pending import Pending, Watch
from ..comm.ranks import GroupRank, Team
from ..comm.sharded import added, reduce_to
from ..ddp.buckets import GradBucket
from ..ddp.hooks.reduction import Hook, call_hook
from ..ddp.kernels import divide
from .layout import BucketPart
from .plan import Piece
from .use import BucketUse


class BucketReduction(ABC):
    """A bucket's reduction from its start to its result."""

    #: what the communication hook returns to DDP
    future: torch.futures.Future[Any]

    @abstractmethod
    def result(self, watch: Watch | None) -> torch.Tensor:
        """Wait for the end; the reduced bucket, flat (numel,) or sparse."""


class WrappedReduction(BucketReduction):
    """The wrapped hook's own reduction. What its future holds is what is stepped and what DDP delivers (HOOK-043)."""

    def __init__(
        self, hook: Hook, state: Any, bucket: GradBucket, part: BucketPart, team: Team, *, changed: bool
    ) -> None:
        """``changed``: what the future holds will be changed in place."""
        self._bucket = part.bucket
        self._team = team
        self.future = call_hook(hook, state, bucket)
        if not all(callable(getattr(self.future, name, None)) for name in ("wait", "then", "done", "value")):
            raise RuntimeError(
                f"The wrapped communication hook returned {type(self.future).__name__} for bucket {bucket.index()} "
                "instead of a torch.futures.Future of a tensor."
            )
        if changed:
            self.future = self.future.then(partial(_without_further_copies, bucket.buffer().dtype))

    def result(self, watch: Watch | None) -> torch.Tensor:
        label = f"the wrapped hook's future of bucket {self._bucket.spec.index}"
        value = wait_for_future(self.future, watch, self._team, label)
        gradients = self._bucket.answered(value, "wrapped hook")
        # a hook may leave it to DDP to cast; an optimizer's gradients are of their parameters' dtype
        return gradients.to(self._bucket.spec.dtype)


def _without_further_copies(dtype: torch.dtype, done: torch.futures.Future[Any]) -> Any:
    """A hook's result as DDP uses it: if DDP cast or copied it later, it would miss what is changed in place here."""
    value = done.value()
    if not isinstance(value, torch.Tensor):
        return value
    value = value.to(dtype)
    return value if value.is_sparse else value.contiguous()


@dataclass
class _Slice:
    flat: torch.Tensor
    pending: Pending
    kept: bool  # whether this rank has the result


class OwnerReduction(BucketReduction):
    """Each run of a piece is summed on its owner and nowhere else: half the bytes of an all-reduce.

    Works in place on slices of the bucket, so that nothing is packed. (On Gloo one reduce for each owner was faster
    than reduce-scatter, which this backend builds from an all-reduce.) Parameters that the optimizer does not have are
    reduced for everybody.
    """

    def __init__(self, bucket: GradBucket, part: BucketPart, team: Team) -> None:
        self._flat = part.bucket.as_gradients(bucket.buffer())
        self._dtype = part.bucket.spec.dtype  # which a hook around this one may have left
        if self._flat.is_sparse:
            raise RuntimeError("reduce_scatter=True cannot reduce sparse gradients: use the hook without it.")
        self._divisor = bucket.divisor()
        self._early = divides_first(self._flat.dtype)
        if self._early:
            divide(self._flat, self._divisor)
        devices: list[Any] | None = [self._flat.device] if streams.is_accelerated(self._flat.device) else None
        self.future = torch.futures.Future(devices=devices)
        self._slices: list[_Slice] = [
            self._start(part, piece, run, team) for piece in _with_strangers(part) for run in piece.runs()
        ]

    def _start(self, part: BucketPart, piece: Piece, run: tuple[int, int], team: Team) -> _Slice:
        slots = part.bucket.spec.slots
        begin, end = slots[run[0]].offset, slots[run[1] - 1].offset + slots[run[1] - 1].numel
        part_of_flat = self._flat[begin:end]
        label = f"bucket {part.bucket.spec.index}, elements {begin} to {end}"
        if piece.owner < 0:
            return _Slice(part_of_flat, all_reduce(team, part_of_flat, label), True)
        pending = reduce_to(team, part_of_flat, GroupRank(piece.owner), label)
        return _Slice(part_of_flat, pending, piece.owner == team.rank)

    def result(self, watch: Watch | None) -> torch.Tensor:
        for piece in self._slices:
            arrived = piece.pending.wait(watch)
            buffer = added(piece.flat, arrived) if piece.kept else piece.flat
            if not piece.kept:
                buffer.zero_()  # what a reduction leaves on other ranks is no gradient
            elif not self._early:
                divide(buffer, self._divisor)
        self.future.set_result(torch.view_as_real(self._flat).flatten() if self._flat.is_complex() else self._flat)
        return self._flat.to(self._dtype)


def _with_strangers(part: BucketPart) -> tuple[Piece, ...]:
    strangers = tuple(place for place, index in enumerate(part.members) if index < 0)
    return (*part.pieces, Piece(-1, strangers)) if strangers else part.pieces


@dataclass
class InFlight:
    """One bucket between the start of its reduction and the start of its broadcasts."""

    part: BucketPart
    reduction: BucketReduction
    #: who uses the bucket's parameters; None where all are used, and until that is asked
    use: BucketUse | None = None
    #: once the reduction is over: by place, the gradients that this rank is to step with
    gradients: dict[int, torch.Tensor] = field(default_factory=dict)
    flat: torch.Tensor | None = None
    #: by place, earlier gradients that parameters which nobody uses keep, outside of ``flat``
    kept: dict[int, torch.Tensor] = field(default_factory=dict)
