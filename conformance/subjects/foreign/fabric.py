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

from .. import Subject
from . import OF_DDP_ALONE, Wrapper, lacking, without


class _Given(LightningEnvironment):
    """The process group is there already."""

    creates_processes_externally = True

    def world_size(self) -> int:
        return dist.get_world_size()

    def global_rank(self) -> int:
        return dist.get_rank()

    def local_rank(self) -> int:
        return dist.get_rank()


class Setup(Wrapper):
    """A model that was set up, and ``no_backward_sync`` under DDP's name."""

    def __init__(self, module: nn.Module, **options: Any) -> None:
        options = without(options, "device_ids", "process_group")
        strategy = DDPStrategy(cluster_environment=_Given(), process_group_backend="gloo", **options)
        fabric = Fabric(accelerator="cpu", devices=dist.get_world_size(), strategy=strategy)
        fabric.launch()
        super().__init__(module, fabric.setup(module))
        self._fabric = fabric

    def no_sync(self) -> AbstractContextManager[None]:
        """As DDP's."""
        return self._fabric.no_backward_sync(self.wrapped)


subject = Subject(
    name="Lightning Fabric",
    version=lightning_fabric.__version__,
    names={"DistributedDataParallel": Setup},
    lacks=lacking(OF_DDP_ALONE, "the wrapper of Fabric has no such attribute"),
)
