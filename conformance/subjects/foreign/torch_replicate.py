"""torch's composable ``replicate``, in its form that is built on DDP."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._composable.replicate import replicate

from .. import Subject
from ..torch import subject as torch_subject
from . import OF_DDP_ALONE, lacking


class Replicated(nn.Module):
    """``replicate(module, **options)`` behind the constructor and the methods of DDP's that it has."""

    def __init__(self, module: nn.Module, *given: Any, **named: Any) -> None:
        super().__init__()
        self.module = replicate(module, *given, **named)
        self._synchronised = True
        self.process_group = named.get("process_group") or dist.group.WORLD

    def forward(self, *given: Any, **named: Any) -> Any:
        return self.module(*given, **named)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Gradients stay local inside."""
        before, self._synchronised = self._synchronised, False
        self.module.set_requires_gradient_sync(False)
        try:
            yield
        finally:
            self._synchronised = before
            self.module.set_requires_gradient_sync(before)

    def register_comm_hook(self, state: object, hook: Any) -> None:
        """As DDP's."""
        self.module.register_comm_hook(state, hook)


subject = Subject(
    "torch replicate",
    torch.__version__,
    {**torch_subject.names, "DistributedDataParallel": Replicated},
    lacking(
        OF_DDP_ALONE, "a replicated module has no such attribute",
        ("process_group", "register_comm_hook", "process groups written in Python"),
    )
    | {"pickling": "a replicated module refuses to be copied, and asks for its state_dict"},
)
