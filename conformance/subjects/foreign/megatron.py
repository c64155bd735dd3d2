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

from .. import Subject
from . import OF_DDP_ALONE, Wrapper, lacking, taken

torch.cuda.current_device = lambda: torch.device("cpu")  # where its buffers are made
_LAYERS = {"num_layers": 1, "hidden_size": 1, "num_attention_heads": 1}


class Megatron(Wrapper):
    """What a Megatron training step does around forward and backward, done by forward and at the end of backward."""

    OVERLAP = False

    def __init__(self, module: nn.Module, **options: Any) -> None:
        options = taken(options, "process_group", "bucket_cap_mb")
        group, cap = options.get("process_group") or dist.group.WORLD, options.get("bucket_cap_mb")
        alone = dist.new_group([dist.get_rank()], use_local_synchronization=True)
        data, other = ("dp", "dp_cp", "intra_dp_cp"), ("tp", "pp", "ep", "expt_dp")
        groups = ProcessGroupCollection(**dict.fromkeys(data, group), **dict.fromkeys(other, alone))
        config = DistributedDataParallelConfig(
            overlap_grad_reduce=self.OVERLAP, bucket_size=int(cap * 2**20 / 4) if cap else None
        )
        ddp = DistributedDataParallel(TransformerConfig(**_LAYERS), config, module, pg_collection=groups)
        super().__init__(module, ddp)
        ddp.broadcast_params()
        for parameter in filter(lambda each: each.requires_grad, module.parameters()):
            parameter.register_post_accumulate_grad_hook(self._arrived)

    def no_sync(self) -> AbstractContextManager[None]:
        """Gradients stay local inside."""
        return self.wrapped.no_sync()

    def forward(self, *given: Any, **named: Any) -> Any:
        self._to_finish = False
        if all(parameter.grad is None for parameter in self.module.parameters()):
            self.wrapped.zero_grad_buffer()
        return super().forward(*given, **named)

    def _arrived(self, _: nn.Parameter) -> None:
        if not self._to_finish:
            torch.autograd.Variable._execution_engine.queue_callback(self._finish)
        self._to_finish = True

    def _finish(self) -> None:
        self._to_finish = False
        if all(group.is_last_microbatch for group in self.wrapped.bucket_groups):
            self.wrapped.finish_grad_sync()
        for parameter in filter(lambda each: each.requires_grad, self.module.parameters()):
            parameter.grad = parameter.main_grad


class MegatronOverlapped(Megatron):
    """The same, reducing while backward runs."""

    OVERLAP = True


_LACKS = lacking(OF_DDP_ALONE, "Megatron's wrapper has no such attribute")
_VERSION = megatron.core.__version__
subject = Subject("Megatron", _VERSION, {"DistributedDataParallel": Megatron}, _LACKS)
overlapped = Subject("Megatron overlapped", _VERSION, {"DistributedDataParallel": MegatronOverlapped}, _LACKS)
