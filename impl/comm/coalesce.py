"""Sending many tensors at once: as bytes, so that one broadcast carries every dtype."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from .collectives import broadcast
from .pending import Watch
from .ranks import GroupRank, Team

_ALIGNMENT = 16  # bytes; the widest element (complex128)


def broadcast_coalesced(
    team: Team,
    tensors: Sequence[torch.Tensor],
    source: GroupRank,
    label: str,
    chunk_bytes: int = 250 * 1024 * 1024,
    watch: Watch | None = None,
) -> None:
    """Overwrite ``tensors`` (dense, any shapes and dtypes) with those of ``source``, in chunks of ``chunk_bytes``.

    Blocks. The version counters of the tensors stay as they are, so that a graph which saved them remains usable
    (DDP-086).
    """
    for number, chunk in enumerate(_chunks(tensors, chunk_bytes)):
        packed, places = _pack(chunk, fill=team.rank == source)
        broadcast(team, packed, source, f"{label}, chunk {number}").wait(watch)
        if team.rank != source:
            for tensor, place in zip(chunk, places, strict=True):
                tensor.data.copy_(packed[place].view(tensor.dtype).view(tensor.shape))


def _chunks(tensors: Sequence[torch.Tensor], chunk_bytes: int) -> Iterator[list[torch.Tensor]]:
    """Tensors of one device each, in order, up to ``chunk_bytes`` a chunk (a larger tensor is a chunk of its own)."""
    devices = dict.fromkeys(tensor.device for tensor in tensors)
    for device in devices:
        chunk: list[torch.Tensor] = []
        size = 0
        for tensor in tensors:
            if tensor.device != device or tensor.numel() == 0:
                continue
            if chunk and size + tensor.nbytes > chunk_bytes:
                yield chunk
                chunk, size = [], 0
            chunk.append(tensor)
            size += tensor.nbytes
        if chunk:
            yield chunk


def _pack(tensors: Sequence[torch.Tensor], *, fill: bool) -> tuple[torch.Tensor, list[slice]]:
    places, offset = [], 0
    for tensor in tensors:
        places.append(slice(offset, offset + tensor.nbytes))
        offset += -(-tensor.nbytes // _ALIGNMENT) * _ALIGNMENT
    packed = torch.zeros(offset, dtype=torch.uint8, device=tensors[0].device)
    if fill:
        for tensor, place in zip(tensors, places, strict=True):
            packed[place].view(tensor.dtype).copy_(tensor.detach().reshape(-1))
    return packed, places
