"""torchtitan's simple_fsdp: parameters are computed from DTensors on every use; autograd sums their gradients."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.utils._pytree import tree_leaves
from torchtitan.experiments.graph_trainer import simple_fsdp

from .. import Subject, Unsupported
from . import OF_DDP_ALONE, lacking, taken


class Parallel(nn.Module):
    """``data_parallel(module, mesh, mode="replicate")`` behind DDP's constructor.

    Divides by the number of ranks where torchtitan's training step divides the loss by all ranks' tokens, and shows
    the parameters themselves outside of forward, as torchtitan does where it looks at a model.
    """

    def __init__(self, module: nn.Module, **options: Any) -> None:
        super().__init__()
        options = taken(options, "process_group", "device_mesh")
        group = options.get("process_group") or dist.group.WORLD
        mesh = options.get("device_mesh") or DeviceMesh.from_group(group, "cpu")
        self.module, self.ranks = simple_fsdp.data_parallel(module, mesh, mode="replicate"), mesh.size()
        simple_fsdp._active_parametrization = False

    def forward(self, *given: Any, **named: Any) -> Any:
        simple_fsdp._active_parametrization = True
        try:
            output = self.module(*given, **named)
        finally:
            simple_fsdp._active_parametrization = False
        for leaf in tree_leaves(output):
            if not isinstance(leaf, torch.Tensor | int | float | str | None):
                raise Unsupported("the adapter divides at outputs that are tensors in plain containers")
            if isinstance(leaf, torch.Tensor) and leaf.requires_grad:
                leaf.register_hook(lambda gradient: gradient / self.ranks)
        return output


subject = Subject(
    "torchtitan simple_fsdp",
    version("torchtitan"),
    {"DistributedDataParallel": Parallel},
    lacking([*OF_DDP_ALONE, "no_sync"], "simple_fsdp has no such attribute"),
)
