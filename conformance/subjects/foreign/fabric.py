"""Lightning Fabric: ``Fabric.setup`` wraps a model with its DDP strategy (torch's DDP inside)."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import lightning_fabric
import torch.distributed as dist
from lightning_fabric import Fabric
from lightning_fabric.plugins.environments import LightningEnvironment
from lightning_fabric.strategies import DDPStrategy
from torch import nn

from .. import Subject, Unsupported
from . import OF_DDP_ALONE, lacking


class _Given(LightningEnvironment):
    """The process group is there already."""

    creates_processes_externally = True

    def world_size(self) -> int:
        return dist.get_world_size()

    def global_rank(self) -> int:
        return dist.get_rank()

    def local_rank(self) -> int:
        return dist.get_rank()


class Setup(nn.Module):
    """A model that was set up, and ``no_backward_sync`` under DDP's name."""

    def __init__(self, module: nn.Module, **options: Any) -> None:
        super().__init__()
        if options.get("device_ids") or options.get("process_group"):
            raise Unsupported("Fabric chooses devices and group")
        strategy = DDPStrategy(cluster_environment=_Given(), process_group_backend="gloo", **options)
        self._fabric = Fabric(accelerator="cpu", devices=dist.get_world_size(), strategy=strategy)
        self._fabric.launch()
        self.wrapped = self._fabric.setup(module)
        self.module = module

    def forward(self, *given: Any, **named: Any) -> Any:
        return self.wrapped(*given, **named)

    def no_sync(self) -> AbstractContextManager[None]:
        """As DDP's."""
        return self._fabric.no_backward_sync(self.wrapped)


subject = Subject(
    name="Lightning Fabric",
    version=lightning_fabric.__version__,
    names={"DistributedDataParallel": Setup},
    lacks=lacking(OF_DDP_ALONE, "the wrapper of Fabric has no such attribute"),
)
