"""torchtitan's simple_fsdp: parameters computed from DTensors on every use, whose gradients autograd reduces."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torchtitan.experiments.graph_trainer.simple_fsdp import data_parallel

from .. import Subject
from . import OF_DDP_ALONE, lacking, taken


class Parallel(nn.Module):
    """``data_parallel(module, mesh, mode="replicate")`` behind DDP's constructor."""

    def __init__(self, module: nn.Module, **options: Any) -> None:
        super().__init__()
        options = taken(options, "process_group", "device_mesh", "find_unused_parameters")
        group = options.get("process_group") or dist.group.WORLD
        mesh = options.get("device_mesh") or DeviceMesh.from_group(group, "cpu")
        self.module = data_parallel(module, mesh, mode="replicate")

    def forward(self, *given: Any, **named: Any) -> Any:
        return self.module(*given, **named)


subject = Subject(
    "torchtitan simple_fsdp",
    version("torchtitan"),
    {"DistributedDataParallel": Parallel},
    lacking([*OF_DDP_ALONE, "no_sync"], "simple_fsdp has no such attribute"),
)
