"""Megatron-core's DistributedDataParallel: gradients in one buffer, reduced when the user asks for it."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import megatron.core
import torch
import torch.distributed as dist
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.transformer import TransformerConfig
from torch import nn

from .. import Subject, Unsupported
from . import OF_DDP_ALONE, Wrapper, lacking, taken

torch.cuda.current_device = lambda: torch.device("cpu")  # where its buffers are made


class Megatron(Wrapper):
    """What a Megatron training step does around forward and backward, done by forward and at the end of backward."""

    OVERLAP = False

    def __init__(self, module: nn.Module, **options: Any) -> None:
        options = taken(options, "process_group", "bucket_cap_mb")
        group = options.get("process_group") or dist.group.WORLD
        alone = dist.new_group([dist.get_rank()], use_local_synchronization=True)
        groups = ProcessGroupCollection(
            dp=group, dp_cp=group, tp=alone, pp=alone, ep=alone, expt_dp=alone, intra_dp_cp=group
        )
        cap = options.get("bucket_cap_mb")
        size = int(cap * 2**20 / 4) if cap else None
        config = DistributedDataParallelConfig(overlap_grad_reduce=self.OVERLAP, bucket_size=size)
        shape = TransformerConfig(num_layers=1, hidden_size=1, num_attention_heads=1)
        super().__init__(module, DistributedDataParallel(shape, config, module, pg_collection=groups))
        self.wrapped.broadcast_params()

    def no_sync(self) -> AbstractContextManager[None]:
        """Gradients stay local inside."""
        return self.wrapped.no_sync()

    def forward(self, *given: Any, **named: Any) -> Any:
        if all(parameter.grad is None for parameter in self.module.parameters()):
            self.wrapped.zero_grad_buffer()
        output = super().forward(*given, **named)
        if not isinstance(output, torch.Tensor):
            raise Unsupported("the adapter looks for the end of backward at an output that is one tensor")
        if output.requires_grad:
            output.register_hook(lambda _: torch.autograd.Variable._execution_engine.queue_callback(self._finish))
        return output

    def _finish(self) -> None:
        if all(group.is_last_microbatch for group in self.wrapped.bucket_groups):
            self.wrapped.finish_grad_sync()
        for parameter in self.module.parameters():
            if parameter.requires_grad:
                parameter.grad = parameter.main_grad


class MegatronOverlapped(Megatron):
    """The same, reducing while backward runs."""

    OVERLAP = True


_LACKS = lacking(OF_DDP_ALONE, "Megatron's wrapper has no such attribute")
subject = Subject("Megatron", megatron.core.__version__, {"DistributedDataParallel": Megatron}, _LACKS)
overlapped = Subject(
    "Megatron overlapped", megatron.core.__version__, {"DistributedDataParallel": MegatronOverlapped}, _LACKS
)
