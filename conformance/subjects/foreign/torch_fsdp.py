"""torch's FSDP2: ``fully_shard`` over all ranks, and ``replicate`` in its form that is built on it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._composable.replicate_with_fsdp import replicate
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

from .. import Subject
from . import OF_DDP_ALONE, lacking, taken


class Sharded(nn.Module):
    """``fully_shard(module)`` behind the constructor and the methods of DDP's that it has."""

    APPLY = staticmethod(fully_shard)

    def __init__(self, module: nn.Module, **options: Any) -> None:
        super().__init__()
        options = taken(options, "process_group", "device_mesh")
        group = options.get("process_group") or dist.group.WORLD
        self.module, self._synchronised = module, True
        self.APPLY(self, mesh=options.get("device_mesh") or DeviceMesh.from_group(group, "cpu"))

    def forward(self, *given: Any, **named: Any) -> Any:
        return self.module(*given, **named)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Gradients stay local inside."""
        before, self._synchronised = self._synchronised, False
        self.set_requires_gradient_sync(False)
        try:
            yield
        finally:
            self._synchronised = before
            self.set_requires_gradient_sync(before)


class Replicated(Sharded):
    """``replicate(module)``: every rank holds all parameters."""

    APPLY = staticmethod(replicate)


_LACKS = lacking(OF_DDP_ALONE, "FSDP2 has no such attribute") | {"pickling": "FSDP2 is saved as a state dict"}
subject = Subject("torch FSDP2", torch.__version__, {"DistributedDataParallel": Sharded}, _LACKS)
replicated = Subject("torch replicate on FSDP2", torch.__version__, {"DistributedDataParallel": Replicated}, _LACKS)
