"""DeepSpeed's ZeRO-1: an optimizer over flat groups, of which every rank steps an equal part of the elements."""

from __future__ import annotations

from typing import Any

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.runtime.zero.stage_1_and_2 import DeepSpeedZeroOptimizer
from deepspeed.utils.timer import NoopTimer

from .. import Subject, Unsupported
from . import lacking, without

deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # as where there is no compiler: it would be built now


class Sharded(DeepSpeedZeroOptimizer):
    """ZeRO-1 behind ZeroRedundancyOptimizer's constructor; steps with the gradients that DDP averaged."""

    def __init__(
        self, params: Any, optimizer_class: type[torch.optim.Optimizer], process_group: Any = None,
        parameters_as_bucket_view: bool = False, overlap_with_ddp: bool = False, **defaults: Any,
    ):  # fmt: skip
        without(locals(), "parameters_as_bucket_view", "overlap_with_ddp")
        if not deepspeed.comm.is_initialized():
            deepspeed.init_distributed("gloo", verbose=False)
        optimizer = optimizer_class(params, **defaults)
        every = [each for group in optimizer.param_groups for each in group["params"]]
        super().__init__(
            optimizer, {each: str(place) for place, each in enumerate(every)}, NoopTimer(), {},
            dp_process_group=process_group or dist.group.WORLD, partition_grads=False, reduce_scatter=False,
            gradient_accumulation_dtype=every[0].dtype, communication_data_type=every[0].dtype,
            reduce_bucket_size=2**20, allgather_bucket_size=2**20, contiguous_gradients=False,
        )  # fmt: skip

    def step(self, closure: Any = None) -> Any:
        """As ZeroRedundancyOptimizer's, without a closure."""
        if closure is not None:
            raise Unsupported("step takes no closure, as its docstring says")
        self.independent_gradient_partition_epilogue()
        return super().step()


_OF_ZERO = (
    "join_hook", "join_device", "join_process_group", "consolidate_state_dict", "add_param_group", "scale",
    "_partition_parameters", "_get_assigned_rank", "_partition_param_group",
)  # fmt: skip
subject = Subject(
    name="DeepSpeed ZeRO-1",
    version=deepspeed.__version__,
    names={"ZeroRedundancyOptimizer": Sharded},
    lacks=lacking(_OF_ZERO, "DeepSpeed's optimizer has no such method"),
)
