"""Copies of a rank's shard of the last two steps, here and on another rank: what the others go on from without it.

    a step has ended ─ sizes (all-reduce) ─ copy of the own shard ─ all-to-all ─▶ the rank ``distance`` further

A rank comes to the exchange of step g when that of step g - 1 has ended on it. So once the sizes of step g are known
anywhere, the copies of step g - 1 lie everywhere, and those of step g - 2 are needed no more; until then they are kept.
Of whatever step a rank is when another is lost, there is one of which the others hold everything, unless the rank that
held the copies is lost, too.
"""

from __future__ import annotations

import math
import pickle
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from ..comm.collectives import all_reduce, all_to_all
from ..comm.flat import aligned, copy_all, new_flat
from ..comm.optimizer_states import copied
from ..comm.ranks import Team
from .groups import Group
from .memory import PLAIN

#: By the parameter's global index: its values and its state; and what its owners have counted in groups.
#: Tensors in containers travel as bytes, all else pickled.
Content = dict[int, Any]

_KEPT = 2  # steps
_LENGTH_BYTES = 8


class _Hole(NamedTuple):
    """Where a tensor was."""

    dtype: torch.dtype
    shape: tuple[int, ...]

    def place(self, end: int) -> range:
        """The bytes of its own after others that end there."""
        start = aligned(end)
        return range(start, start + math.prod(self.shape) * self.dtype.itemsize)

    def view(self, body: torch.Tensor, place: range) -> torch.Tensor:
        return body[place.start : place.stop].view(self.dtype).view(self.shape)


@dataclass
class _Copy:
    step: int
    body: torch.Tensor  # (bytes,) uint8
    # of the own shard, and never sent: the local optimizer's counters, and the settings with which the next step began
    counters: Any = None
    settings: list[Group] | None = None


class Copies:
    """This rank's copies of its own shard and of that of the rank ``distance`` before it."""

    def __init__(self, distance: int, team: Team) -> None:
        self._distance = distance
        #: whose ranks hold the copies
        self.team = team
        #: how many steps have been copied to the end on this rank, since the copies were begun
        self.steps = 0
        # oldest first, two at most; the first of them is overwritten in the next exchange
        self._own: list[_Copy] = []
        self._others: list[_Copy] = []

    def forget(self) -> None:
        """What is kept is not what the ranks have any more; the next exchange begins anew."""
        self._own, self._others = [], []

    def begin(self, settings: list[Group]) -> None:
        """A step begins with these settings."""
        for last in self._own[-1:]:
            last.settings = settings

    def settings_after(self, step: int) -> list[Group] | None:
        """The settings with which the step after this one began; None if it has not: they are the present ones."""
        return self._after(step).settings

    def counters_after(self, step: int) -> Any:
        """The local optimizer's counters then."""
        return self._after(step).counters

    def _after(self, step: int) -> _Copy:
        return next(copy for copy in self._own if copy.step == step)

    def exchange(self, content: Content, counters: Any, step: int, device: torch.device) -> None:
        """Keep a copy of ``content`` here and on another rank. Every rank of the team makes this call."""
        if self.team.size > 1:
            self._exchange(_Packed(content), counters, step, self.team.control_device(device))
        self.steps = step

    def _exchange(self, packed: _Packed, counters: Any, step: int, device: torch.device) -> None:
        team = self.team
        source, target = ((team.rank + way * self._away()) % team.size for way in (-1, 1))
        sizes = torch.zeros(team.size, dtype=torch.int64, device=device)
        sizes[team.rank] = packed.nbytes
        by_rank = all_reduce(team, sizes, "mirror: sizes of the shards").wait().tolist()
        own = _room(self._own, by_rank[team.rank], device)
        packed.write(own)
        self._own.append(_Copy(step, own, counters))
        arriving, leaving = [0] * team.size, [0] * team.size
        arriving[source], leaving[target] = by_rank[source], by_rank[team.rank]
        received = _room(self._others, by_rank[source], device)
        all_to_all(team, received, own, "mirror: shards", arriving, leaving).wait()
        self._others.append(_Copy(step, received))

    def _away(self) -> int:
        """The distance, where enough ranks are left for it; else one that still leads to another rank."""
        return 1 + (self._distance - 1) % (self.team.size - 1)

    def held(self) -> dict[int, list[int]]:
        """By group rank: the steps of which this rank holds that one's shard."""
        return {rank: [copy.step for copy in copies] for rank, copies in self._by_rank().items()}

    def content(self, step: int, lost: Collection[int]) -> Content:
        """What this rank owned after that step, and what the other did if it is lost; on the CPU, for the caller."""
        content: Content = {}
        for rank, copies in self._by_rank().items():
            if copies is self._own or rank in lost:
                content |= _Unpacked(next(copy.body for copy in copies if copy.step == step)).content
        return content

    def _by_rank(self) -> dict[int, list[_Copy]]:
        team = self.team
        return {int(team.rank): self._own, (team.rank - self._away()) % team.size: self._others}


def _room(copies: list[_Copy], nbytes: int, device: torch.device) -> torch.Tensor:
    """Bytes for a further copy: those of the oldest, which is given up, if there are as many as there may be."""
    if len(copies) == _KEPT and (oldest := copies.pop(0).body).numel() == nbytes:
        return oldest
    return new_flat(nbytes, torch.uint8, device)


class _Packed:
    """A content on its way into bytes: the length of the pickled frame, the frame, and one tensor after the other."""

    def __init__(self, content: Content) -> None:
        self._tensors: list[torch.Tensor] = []
        frame = _without_tensors(content, self._tensors)
        try:
            body = pickle.dumps(frame)
        except Exception as error:
            raise TypeError(
                "The state of an optimizer that keeps a mirror goes to another rank after each step, but it cannot be "
                f"pickled: {error}. Keep functions and handles out of it."
            ) from error
        self._head = len(body).to_bytes(_LENGTH_BYTES, "little") + body
        self._places: list[range] = []
        self.nbytes = len(self._head)
        for tensor in self._tensors:
            self._places.append(_hole(tensor).place(self.nbytes))
            self.nbytes = self._places[-1].stop

    def write(self, body: torch.Tensor) -> None:
        """Fill these bytes."""
        body[: len(self._head)] = torch.frombuffer(bytearray(self._head), dtype=torch.uint8)
        views = [_hole(each).view(body, place) for each, place in zip(self._tensors, self._places, strict=True)]
        if views:
            copy_all(views, self._tensors)


def _without_tensors(value: Any, tensors: list[torch.Tensor]) -> Any:
    """The same with a hole for each dense tensor; the list takes them in."""
    if type(value) in PLAIN and value.layout == torch.strided:
        tensors.append(value.detach())
        return _hole(value)
    return value if isinstance(value, set) else copied(value, lambda item: _without_tensors(item, tensors))


def _hole(tensor: torch.Tensor) -> _Hole:
    return _Hole(tensor.dtype, tensor.shape)


class _Unpacked:
    """The way back."""

    def __init__(self, body: torch.Tensor) -> None:
        self._body = body.to("cpu")
        self._end = _LENGTH_BYTES + int.from_bytes(self._body[:_LENGTH_BYTES].numpy().tobytes(), "little")
        # made by a rank of the same group in its last steps
        frame = pickle.loads(self._body[_LENGTH_BYTES : self._end].numpy().tobytes())
        self.content: Content = self._filled(frame)

    def _filled(self, value: Any) -> Any:
        if isinstance(value, _Hole):
            place = value.place(self._end)
            self._end = place.stop
            return value.view(self._body, place).clone()
        return copied(value, self._filled)
