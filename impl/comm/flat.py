"""Lists of tensors and the flat ones in which they travel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate

import torch

ALIGNMENT = 16  # bytes; the widest element (complex128)

_CopyAll = Callable[[Sequence[torch.Tensor], Sequence[torch.Tensor]], object]

#: ``copy_all(targets, sources)`` copies each source into its target with as few launches as the device allows: one call
#: for the whole list (0.3 µs a tensor instead of 2). Lists or tuples, not empty. torch._foreach_copy_ is private.
copy_all: _CopyAll = torch._foreach_copy_  # type: ignore[assignment]


def aligned(nbytes: int) -> int:
    """The first byte, from this one on, at which an element of any dtype can begin."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def new_flat(numel: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Zeros in a flat tensor that is kept for many uses, of which some may be under inference mode and others not.

    (What is made under inference mode cannot be written to outside of it.)
    """
    with torch.inference_mode(False):
        return torch.zeros(numel, dtype=dtype, device=device)


def flat_views(flat: torch.Tensor, like: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Consecutive pieces of ``flat``, each in the shape of its model."""
    pieces = flat.split([tensor.numel() for tensor in like])
    return [piece.view(tensor.shape) for piece, tensor in zip(pieces, like, strict=True)]


def dense_view(flat: torch.Tensor, offset: int, like: torch.Tensor) -> torch.Tensor:
    """A view of ``flat`` from element ``offset`` on, shaped like ``like``, with its strides if those are dense.

    Tensors of a parameter that are laid out alike keep the optimizer's loops simple (channels_last stays
    channels_last); a fused one goes through them from end to end.
    """
    if _is_dense(like):
        return flat.as_strided(like.size(), like.stride(), flat.storage_offset() + offset)
    return flat[offset : offset + like.numel()].view(like.size())


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether the tensor's elements fill a block of memory with neither holes nor overlaps."""
    expected = 1
    for stride, size in sorted((s, n) for s, n in zip(tensor.stride(), tensor.shape, strict=True) if n != 1):
        if stride != expected:
            return False
        expected *= size
    return True


def dense_views(flat: torch.Tensor, like: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Consecutive pieces of ``flat``, each in the shape of its model, with its strides if those are dense."""
    offsets = accumulate((tensor.numel() for tensor in like), initial=0)
    return [dense_view(flat, offset, tensor) for offset, tensor in zip(offsets, like, strict=False)]


def extent(tensor: torch.Tensor) -> int:
    """How many elements of memory it reaches over, from its first to its last."""
    return 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


def laid_out_like(value: torch.Tensor, model: torch.Tensor) -> torch.Tensor:
    """``value``, or a copy that lies in memory as its model, of the same shape, does."""
    if value.stride() == model.stride():
        return value
    return torch.empty_like(model, dtype=value.dtype, device=value.device).copy_(value)


def views_like(views: Sequence[torch.Tensor], of: torch.Tensor, target: torch.Tensor) -> list[torch.Tensor]:
    """Views of ``target`` that lie in it as ``views`` lie in ``of``, which has no gaps.

    ``target`` may be every n-th element of something larger, (numel,).
    """
    nth = 1 if target.is_contiguous() else target.stride(0)
    start, first = target.storage_offset(), of.storage_offset()
    return [
        target.as_strided(
            view.size(), [nth * stride for stride in view.stride()], start + nth * (view.storage_offset() - first)
        )
        for view in views
    ]


def note_change(tensors: Sequence[torch.Tensor]) -> None:
    """Something has been received into these: a graph that has saved one must not go on from it, on any rank."""
    torch.autograd.graph.increment_version([tensor for tensor in tensors if not tensor.is_inference()])


def _under_inference(view: torch.Tensor) -> torch.Tensor:
    """The same memory as what is made under inference mode: a parameter made there can be no other."""
    with torch.inference_mode():
        return view.new_empty(0).set_(view)  # type: ignore[call-overload, no-any-return]


class PlacedTensors:
    """Tensors whose places are known, and whether somebody has moved them since (``tensor.data = ...``)."""

    def __init__(self) -> None:
        self._addresses: dict[torch.Tensor, int] = {}

    def move(self, tensors: Sequence[torch.Tensor], numel: int | None = None) -> torch.Tensor:
        """Move tensors of one kind into a new flat one, of which they become views with the strides that they have.

        Returns it; it has ``numel`` elements, by default as many as they have together.
        """
        like = tensors[0]
        flat = new_flat(sum(map(torch.numel, tensors)) if numel is None else numel, like.dtype, like.device)
        views = dense_views(flat, tensors)
        with torch.no_grad():
            copy_all(views, [tensor.detach() for tensor in tensors])
        for tensor, view in zip(tensors, views, strict=True):
            tensor.data = _under_inference(view) if tensor.is_inference() else view
        self.note(tensors)
        return flat

    def note(self, tensors: Sequence[torch.Tensor]) -> None:
        """They stay where they are."""
        self._addresses.update(zip(tensors, map(torch.Tensor.data_ptr, tensors), strict=True))

    @property
    def stale(self) -> bool:
        return list(map(torch.Tensor.data_ptr, self._addresses)) != list(self._addresses.values())
