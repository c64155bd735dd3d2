"""DeepSpeed's engine with ZeRO-1. It owns backward: a step gives it a loss with the gradients that there are."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.runtime.zero.muon import muon_optimizer  # noqa: F401 - an engine would load it on every rank
from torch import nn

from .. import Subject, Unsupported
from . import lacking, without

deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # as where there is no compiler: it would be built now


class _Held(nn.Module):
    """Parameters as a module, whose loss has the gradients that it is given."""

    def __init__(self, parameters: Any) -> None:
        super().__init__()
        self.every = nn.ParameterList(parameters)

    def forward(self, gradients: list[torch.Tensor | None]) -> Any:
        pairs = zip(self.every, gradients, strict=True)
        return sum((parameter * given.conj()).sum().real for parameter, given in pairs if given is not None)


class Sharded:
    """An engine of ZeRO-1 behind ZeroRedundancyOptimizer's constructor and step."""

    def __init__(
        self, params: Any, optimizer_class: type[torch.optim.Optimizer], process_group: Any = None,
        parameters_as_bucket_view: bool = False, overlap_with_ddp: bool = False, **defaults: Any,
    ):  # fmt: skip
        without(locals(), "parameters_as_bucket_view", "overlap_with_ddp")
        os.environ.setdefault("LOCAL_RANK", str(dist.get_rank()))  # as a launcher does
        optimizer, group = optimizer_class(params, **defaults), process_group or dist.group.WORLD
        held = _Held(each for entry in optimizer.param_groups for each in entry["params"])
        config = {
            "train_micro_batch_size_per_gpu": 1, "gradient_clipping": 0.0, "zero_allow_untested_optimizer": True,
            "bf16": {"enabled": held.every[0].dtype is torch.bfloat16}, "zero_optimization": {"stage": 1},
        }  # fmt: skip
        ranks = SimpleNamespace(
            get_data_parallel_group=lambda: group, get_data_parallel_world_size=group.size,
            get_data_parallel_rank=group.rank, get_model_parallel_rank=lambda: 0,
            get_model_parallel_group=lambda: None, get_model_parallel_world_size=lambda: 1,
        )  # fmt: skip
        self._engine = deepspeed.initialize(model=held, optimizer=optimizer, config=config, mpu=ranks)[0]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine.optimizer, name)

    def step(self, closure: Any = None) -> None:
        """As ZeroRedundancyOptimizer's, without a closure."""
        if closure is not None:
            raise Unsupported("the engine's step takes no closure")
        gradients = [each.grad for each in self._engine.module.every]
        self._engine.zero_grad()
        if any(each is not None for each in gradients):
            with torch.inference_mode(False), torch.enable_grad():
                self._engine.backward(self._engine(gradients))
        self._engine.step()


_OF_ZERO = "join_hook", "join_device", "join_process_group", "consolidate_state_dict", "add_param_group", "scale"
subject = Subject(
    name="DeepSpeed ZeRO-1",
    version=deepspeed.__version__,
    names={"ZeroRedundancyOptimizer": Sharded},
    lacks=lacking(_OF_ZERO, "DeepSpeed's optimizer has no such method"),
)
