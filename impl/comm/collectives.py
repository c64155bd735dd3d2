"""The only caller of torch.distributed's collectives. Each takes a label, which names it in traces and errors."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from operator import attrgetter
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from . import strict
from .flat import ALIGNMENT, aligned, copy_all
from .pending import Pending, Watch, fail, watch_of
from .ranks import GroupRank, Team

BROADCAST_CHUNK_BYTES = 250 * 1024 * 1024

#: of tensors, in their order
Sizes = Sequence[tuple[torch.dtype, int]]  # dtype and bytes

size_of = attrgetter("dtype", "nbytes")

#: how a message begins that says nothing but which sizes come next: no buffer begins with 7e25, or counts to 1.8e9
_UNLIKE = int.from_bytes(b"join", "big")
_SHOWN = 8  # tensors that an error describes

#: torch 2.13 has renamed it and warns of the older name
_all_gather: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


def launch(
    team: Team,
    label: str,
    buffer: torch.Tensor,
    begin: Callable[[], Any],
    expected: Callable[[], strict.Expected],
    *,
    result_in_future: bool = False,
) -> Pending:
    """Start a collective that fills ``buffer``: ``begin`` has the group do it, ``expected`` is for strict mode."""
    if team.tally.doubt is not None:
        team.tally.doubt()
    confirm = strict.agree(team, label, expected()) if team.is_strict else None
    try:
        work = begin()
    except dist.DistError as error:  # NCCL refuses where a peer of an earlier one has gone
        fail(error, watch_of(team), team.tally.place_of(label), team)
    pending = Pending(label, buffer, work, team, result_in_future=result_in_future)
    return pending if confirm is None else confirm(pending)


# What every iteration does goes straight to the group's methods, with options that are made once: torch.distributed's
# functions make them anew and look at much that is known here (36 of 108 µs in the middle of a step). Complex tensors
# go the long way, which shows them to the backend as real ones.


def all_reduce(team: Team, buffer: torch.Tensor, label: str, op: Any = dist.ReduceOp.SUM) -> Pending:
    """Start reducing ``buffer`` in place over the team (sum unless ``op`` says otherwise)."""
    if buffer.is_complex():
        begin = partial(dist.all_reduce, buffer, op=op, group=team.group, async_op=True)
    else:
        begin = partial(team.group.allreduce, [buffer], _reducing(op))

    def expected() -> strict.Expected:
        given = strict.addable(buffer, op)  # all have the same result: one of them shows it
        return strict.Expected("all-reduce", buffer, op, given=given, got=given if team.rank == 0 else None)

    return launch(team, label, buffer, begin, expected, result_in_future=team.is_in_python)


def broadcast(team: Team, buffer: torch.Tensor, source: GroupRank, label: str) -> Pending:
    """Start sending ``buffer`` of group rank ``source`` to the whole team, in place."""
    if buffer.is_complex():
        begin = partial(dist.broadcast, buffer, group_src=source, group=team.group, async_op=True)
    else:
        begin = partial(team.group.broadcast, [buffer], _sending(source))

    def expected() -> strict.Expected:
        mine = buffer if team.rank == source else None
        return strict.Expected("broadcast", buffer, f" from rank {source}", sent=mine, found=mine)

    return launch(team, label, buffer, begin, expected)


@cache
def _reducing(op: Any) -> dist.AllreduceOptions:
    """Asynchronous unless they say otherwise, like those below."""
    options = dist.AllreduceOptions()
    options.reduceOp = op
    return options


@cache
def _sending(source: GroupRank) -> dist.BroadcastOptions:
    options = dist.BroadcastOptions()
    options.rootRank = source
    return options


def broadcast_coalesced(
    team: Team,
    tensors: Sequence[torch.Tensor],
    source: GroupRank,
    label: str,
    chunk_bytes: int = BROADCAST_CHUNK_BYTES,
    watch: Watch | None = None,
    actual: Callable[[], GroupRank] | None = None,
    formerly: Sizes | None = None,
) -> None:
    """Overwrite ``tensors`` (dense, any shapes and dtypes) with those of ``source``, in chunks of ``chunk_bytes``.

    With ``actual`` the source is only a guess, with which the ranks need not wait: when the first chunk has come all of
    them ask for the right one, and send again if it is another.

    ``formerly``: the sizes that these tensors had when they had the same on all ranks, where they have others now. Then
    a message of those sizes comes first, which tells of it: RuntimeError on a rank that has not the sizes of ``source``
    (between CPUs: to look at a number on an accelerator is to wait for it), before anything is overwritten.

    Blocks. The version counters of the tensors stay as they are, so that a graph which saved them remains usable
    (DDP-086).
    """
    if formerly is not None and tensors and tensors[0].is_cpu:
        _SizeCheck(team, tensors, source, label, watch).agree(formerly, chunk_bytes)
    for number, chunk in enumerate(_chunks(tensors, chunk_bytes)):
        packed, parts = _lay_out(chunk)
        guessed = None
        while guessed != source:
            if team.rank == source:
                with torch.no_grad():
                    copy_all(parts, chunk)
            broadcast(team, packed, source, f"{label}, chunk {number}").wait(watch)
            if number == 0 and packed.is_cpu and packed[:4].view(torch.int32).item() == _UNLIKE:
                _SizeCheck(team, tensors, source, label, watch).refuse(packed)
            guessed, source = source, source if actual is None else actual()
        if team.rank != source:
            _overwrite([tensor.data for tensor in chunk], parts)


@dataclass(frozen=True)
class _SizeCheck:
    """RuntimeError on a rank whose tensors have not the sizes of those that it is to take over from ``source``."""

    team: Team
    tensors: Sequence[torch.Tensor]
    source: GroupRank
    label: str
    watch: Watch | None

    def agree(self, formerly: Sizes, chunk_bytes: int) -> None:
        """On a rank whose sizes have changed, while those of others may be as they were."""
        kinds: dict[torch.dtype, int] = {}
        for dtype, nbytes in formerly:
            kinds[dtype] = kinds.get(dtype, 0) + nbytes
        length = sum(map(aligned, kinds.values()))  # what such a rank would wait for, and take for its tensors
        if not 0 < length <= chunk_bytes:
            return  # it would wait for nothing, or for some of them
        message = torch.zeros(length, dtype=torch.uint8, device="cpu")
        sizes = tuple([(tensor.dtype.itemsize, tensor.numel()) for tensor in self.tensors])
        first = next(_chunks(self.tensors, chunk_bytes), [])  # none where all are without elements now
        next_bytes = min(len(_lay_out(first)[0]), 2**31 - 1) if first else 0
        # the hash of integers is the same in every process
        expected = torch.tensor([_UNLIKE, hash(sizes) % 2**31, next_bytes, 0], dtype=torch.int32, device="cpu")
        told = message[:ALIGNMENT].view(torch.int32)
        if self.team.rank == self.source:
            told.copy_(expected)
        broadcast(self.team, message, self.source, f"{self.label}: other sizes").wait(self.watch)
        if not torch.equal(told, expected):
            self.refuse(message)

    def refuse(self, message: torch.Tensor) -> NoReturn:
        """Behind what ``source`` sends next if ``message`` tells of it: that is not to wait for this rank."""
        opening, _, next_bytes, _ = message[:ALIGNMENT].view(torch.int32).tolist()
        if opening == _UNLIKE and next_bytes:
            rest = torch.empty(next_bytes, dtype=torch.uint8, device="cpu")
            broadcast(self.team, rest, self.source, self.label).wait(self.watch)
        shapes = [tuple(tensor.shape) for tensor in self.tensors]
        raise RuntimeError(
            f"Group rank {self.team.rank} cannot take over the {self.label} of group rank {self.source}: the sizes of "
            f"their tensors differ. Here they end with {shapes[-_SHOWN:]}. Usual cause: a module that replaces a "
            "buffer by one of another size in its forward, such as a cache that grows with its input, on some ranks "
            "only, or in a join block after some rank had run out of inputs. Give it its full size before the model is "
            "wrapped, keep it as a plain attribute, or leave it out by _set_params_and_buffers_to_ignore_for_model."
        )


def _overwrite(targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> None:
    try:
        copy_all(targets, sources)
    except RuntimeError:  # some are marked as conjugate or negative: a list of such cannot be written to
        for target, source in zip(targets, sources, strict=True):
            target.copy_(source)


def _chunks(tensors: Sequence[torch.Tensor], chunk_bytes: int) -> Iterator[list[torch.Tensor]]:
    """Tensors of one device each, in order, up to ``chunk_bytes`` a chunk (a larger tensor is a chunk of its own)."""
    devices = dict.fromkeys([tensor.device for tensor in tensors])
    for device in devices:
        chunk: list[torch.Tensor] = []
        size = 0
        for tensor in tensors:
            if tensor.device != device or tensor.numel() == 0:
                continue
            stored = each_once(tensor)
            if chunk and size + stored.nbytes > chunk_bytes:
                yield chunk
                chunk, size = [], 0
            chunk.append(stored)
            size += stored.nbytes
        if chunk:
            yield chunk


def each_once(tensor: torch.Tensor) -> torch.Tensor:
    """The part of a tensor that shows each of its elements once: an expanded dimension cannot be written as a whole."""
    if 0 not in tensor.stride():
        return tensor
    for dimension, stride in enumerate(tensor.stride()):
        if stride == 0:
            tensor = tensor.narrow(dimension, 0, 1)
    return tensor


def _lay_out(tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Bytes that hold all tensors, dtype after dtype; and the part for each tensor, in their order and shape."""
    kinds: dict[torch.dtype, list[int]] = {}
    for place, tensor in enumerate(tensors):
        kinds.setdefault(tensor.dtype, []).append(place)
    starts, size = [], 0
    for places in kinds.values():
        starts.append(size)
        # flat.aligned, written out: every iteration comes here
        size += -(-sum([tensors[place].nbytes for place in places]) // ALIGNMENT) * ALIGNMENT
    packed = torch.empty(size, dtype=torch.uint8, device=tensors[0].device)
    parts = [packed] * len(tensors)
    for (dtype, places), start in zip(kinds.items(), starts, strict=True):
        numels = [tensors[place].numel() for place in places]
        end = start + sum(numels) * dtype.itemsize
        for place, piece in zip(places, packed[start:end].view(dtype).split(numels), strict=True):
            parts[place] = piece.view_as(tensors[place])  # a third of the time of view(shape)
    return packed, parts


def all_gather(team: Team, whole: torch.Tensor, part: torch.Tensor, label: str) -> Pending:
    """Start gathering equal flat parts, in rank order, into ``whole`` (``team.size`` times as long as ``part``)."""
    begin = partial(_all_gather, whole, part, group=team.group, async_op=True)

    def expected() -> strict.Expected:
        return strict.Expected("all-gather", part, sent=part, found=whole.view(team.size, -1)[team.rank])

    return launch(team, label, whole, begin, expected)


def all_to_all(
    team: Team,
    received: torch.Tensor,
    sent: torch.Tensor,
    label: str,
    arriving: list[int] | None = None,
    leaving: list[int] | None = None,
) -> Pending:
    """Start sending each rank its part of ``sent``, in rank order, and filling ``received`` with theirs, likewise.

    ``arriving`` and ``leaving`` say how many elements each part has; without them all are equal. ``sent`` and
    ``received`` may overlap in the part that a rank sends to itself.
    """
    begin = partial(dist.all_to_all_single, received, sent, arriving, leaving, group=team.group, async_op=True)

    def expected() -> strict.Expected:  # the parts may differ from rank to rank, so no size is compared
        return strict.Expected("all-to-all", sent.new_empty(0), alike=False, given=sent, got=received)

    return launch(team, label, received, begin, expected)


def broadcast_object(team: Team, value: Any, source: GroupRank, device: torch.device, label: str) -> Any:
    """Send a small picklable value from ``source`` to the team; returns it on every rank. Blocks.

    ``device``: for a group without a backend for the CPU.
    """
    device = team.control_device(device)
    payload = _pickled(value).to(device) if team.rank == source else None
    length = torch.tensor([0 if payload is None else len(payload)], dtype=torch.int64, device=device)
    size = int(broadcast(team, length, source, f"{label}: length").wait().item())
    body = torch.empty(size, dtype=torch.uint8, device=device) if payload is None else payload
    return _unpickled(broadcast(team, body, source, label).wait())


def all_gather_object(team: Team, value: Any, device: torch.device, label: str) -> list[Any]:
    """Every rank's small picklable value, in rank order. Blocks. ``device``: as of ``broadcast_object``."""
    device = team.control_device(device)
    payload = _pickled(value).to(device)
    sizes = torch.zeros(team.size, dtype=torch.int64, device=device)
    sizes[team.rank] = payload.numel()
    longest = int(all_reduce(team, sizes, f"{label}: lengths").wait().max().item())
    part = torch.zeros(longest, dtype=torch.uint8, device=device)
    part[: payload.numel()] = payload
    whole = torch.zeros(longest * team.size, dtype=torch.uint8, device=device)
    rows = all_gather(team, whole, part, label).wait().cpu().view(team.size, longest)
    return [_unpickled(row[:size]) for row, size in zip(rows, sizes.tolist(), strict=True)]


def all_to_all_object(team: Team, values: Sequence[Any], device: torch.device, label: str) -> list[Any]:
    """Send ``values[k]`` to rank k; returns what each rank has sent here, in rank order. Blocks.

    Nothing goes to a rank but what is meant for it. What a rank has for itself is handed back as it is.
    """
    if team.size == 1:
        return list(values)
    device = team.control_device(device)
    none = torch.empty(0, dtype=torch.uint8, device="cpu")
    packed = [none if rank == team.rank else _pickled(value) for rank, value in enumerate(values)]
    leaving = list(map(len, packed))
    lengths = torch.tensor(leaving, dtype=torch.int64, device=device)
    arriving = all_to_all(team, torch.empty_like(lengths), lengths, f"{label}: lengths").wait().tolist()
    received = torch.empty(sum(arriving), dtype=torch.uint8, device=device)
    all_to_all(team, received, torch.cat(packed).to(device), label, arriving, leaving).wait()
    parts = received.cpu().split(arriving)
    return [values[rank] if rank == team.rank else _unpickled(part) for rank, part in enumerate(parts)]


def _pickled(value: Any) -> torch.Tensor:
    return torch.frombuffer(bytearray(pickle.dumps(value)), dtype=torch.uint8)


def _unpickled(content: torch.Tensor) -> Any:
    return pickle.loads(content.cpu().numpy().tobytes())
