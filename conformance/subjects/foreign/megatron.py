"""Megatron-core's DistributedDataParallel: gradients in one buffer, reduced when the user asks for it."""

from __future__ import annotations

from typing import Any

import megatron.core
import torch
import torch.distributed as dist
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.transformer import TransformerConfig
from torch import nn
from torch.utils._pytree import tree_leaves

from .. import Subject
from . import OF_DDP_ALONE, Wrapper, lacking, taken

torch.cuda.current_device = lambda: torch.device("cpu")  # where its buffers are made


class Megatron(Wrapper):
    """What a Megatron training step does around forward and backward, done by forward and at the end of backward."""

    OVERLAP = False

    def __init__(self, module: nn.Module, **options: Any) -> None:
        options = taken(options, "process_group", "bucket_cap_mb")
        group, cap = options.get("process_group") or dist.group.WORLD, options.get("bucket_cap_mb")
        alone = dist.new_group([dist.get_rank()], use_local_synchronization=True)
        data, other = ("dp", "dp_cp", "intra_dp_cp"), ("tp", "pp", "ep", "expt_dp")
        groups = ProcessGroupCollection(**dict.fromkeys(data, group), **dict.fromkeys(other, alone))
        config = DistributedDataParallelConfig(overlap_grad_reduce=self.OVERLAP, bucket_size=cap and int(cap * 2**18))
        model = TransformerConfig(num_layers=1, hidden_size=1, num_attention_heads=1)
        super().__init__(module, DistributedDataParallel(model, config, module, pg_collection=groups))
        self.wrapped.broadcast_params()
        self.no_sync = self.wrapped.no_sync
        self._trained = [each for each in module.parameters() if each.requires_grad]
        for parameter in self._trained:
            node = parameter.expand_as(parameter).grad_fn.next_functions[0][0]  # which adds to .grad
            node.register_prehook(lambda _, parameter=parameter: self._come(parameter))

    def forward(self, *given: Any, **named: Any) -> Any:
        self._to_finish = self._arrived = False
        if not any(each.grad is not None and each.grad.any() for each in self._trained):
            last = [group.is_last_microbatch for group in self.wrapped.bucket_groups]
            self.wrapped.zero_grad_buffer()  # which a step does before it begins no_sync
            for group, before in zip(self.wrapped.bucket_groups, last, strict=True):
                group.is_last_microbatch = before
        output = super().forward(*given, **named)
        for leaf in tree_leaves(output):
            if isinstance(leaf, torch.Tensor) and leaf.requires_grad:
                leaf.register_hook(self._come)  # before any backward within this one
        return output

    def _come(self, came: torch.Tensor) -> None:
        if isinstance(came, nn.Parameter):
            came.grad, self._arrived = None, True  # what was there is in main_grad
        if not self._to_finish:
            torch.autograd.Variable._execution_engine.queue_callback(self._finish)
        self._to_finish = True

    def _finish(self) -> None:
        arrived, self._arrived, self._to_finish = self._arrived, False, False
        if arrived and all(group.is_last_microbatch for group in self.wrapped.bucket_groups):
            self.wrapped.finish_grad_sync()
        for parameter in self._trained if arrived else ():
            parameter.grad = parameter.main_grad


Overlapped = type("Overlapped", (Megatron,), {"OVERLAP": True, "__doc__": "The same, reducing while backward runs."})


_LACKS = lacking(OF_DDP_ALONE, "Megatron's wrapper has no such attribute")
subject = Subject("Megatron", megatron.core.__version__, {"DistributedDataParallel": Megatron}, _LACKS)
overlapped = Subject("Megatron overlapped", megatron.core.__version__, {"DistributedDataParallel": Overlapped}, _LACKS)
