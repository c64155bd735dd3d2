"""Distributed autograd (RPC): gradients that live in a context of its own instead of in ``.grad`` (DDP-022)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch.distributed import autograd as dist_autograd


class RemoteBackward:
    """A backward whose forward ran in a distributed-autograd context.

    What arrives in it is looked at when it ends, for autograd does not say whether a gradient went to ``.grad`` or to
    the context.
    """

    def __init__(self, context: int) -> None:
        self._context = context
        #: the parameters that this backward has come to with a gradient, by index
        self.came: set[int] = set()

    @contextmanager
    def borrowed_gradients(self, parameters: Sequence[torch.nn.Parameter]) -> Iterator[list[int]]:
        """Inside the block the parameters' ``.grad`` is what they have in this context, or None.

        Yields the indices of those that have something. Afterwards the context holds what ``.grad`` has become, and
        ``.grad`` is what it was.
        """
        found = dist_autograd.get_gradients(self._context)
        before = [parameter.grad for parameter in parameters]
        values = [(each, each.clone()) for each in before if each is not None]  # they may lie in buckets
        borrowed = [found.get(parameter) for parameter in parameters]
        for parameter, gradient in zip(parameters, borrowed, strict=True):
            parameter.grad = gradient
        try:
            yield [index for index, gradient in enumerate(borrowed) if gradient is not None]
            for parameter, gradient in zip(parameters, borrowed, strict=True):
                if gradient is not None and parameter.grad is not None and parameter.grad is not gradient:
                    gradient.copy_(parameter.grad)
        finally:
            for parameter, old in zip(parameters, before, strict=True):
                parameter.grad = old
            for old, value in values:
                old.copy_(value)
