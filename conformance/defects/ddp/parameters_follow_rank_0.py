"""Every training forward makes the parameters equal to rank 0's again."""

from typing import Any

import torch
import torch.distributed as dist

from impl.ddp import DistributedDataParallel

from ..planting import swap

CLAUSES = ("DDP-166",)


def plant() -> None:
    def prepare(self: DistributedDataParallel, *inputs: Any, **kwargs: Any) -> Any:
        if torch.is_grad_enabled():
            for parameter in self._module_parameters:
                dist.broadcast(parameter.data, group_src=0, group=self.process_group)
        return right(self, *inputs, **kwargs)

    right = swap(DistributedDataParallel, "_pre_forward", prepare)
