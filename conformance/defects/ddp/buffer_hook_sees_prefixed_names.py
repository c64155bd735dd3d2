"""A buffer hook is given the names of the DDP model, with module. in front."""

from typing import Any

import torch

from impl.ddp.buffers import _BufferCommHook

from ..planting import swap

CLAUSES = ("DDP-093",)


def plant() -> None:
    def call(self: _BufferCommHook, buffers: dict[str, torch.Tensor]) -> list[Any]:
        return right(self, {f"module.{name}": buffer for name, buffer in buffers.items()})

    right = swap(_BufferCommHook, "call", call)
