"""Each rank takes its share of the input instead of all of it."""

from typing import Any

import torch

from impl.ddp import DistributedDataParallel

from ..planting import swap

CLAUSES = ("DDP-035",)


def plant() -> None:
    def forward(self: DistributedDataParallel, *inputs: Any, **kwargs: Any) -> Any:
        team = self.reducer.team
        mine = [
            x.chunk(team.size)[team.rank] if isinstance(x, torch.Tensor) and len(x) >= team.size else x for x in inputs
        ]
        return right(self, *mine, **kwargs)

    right = swap(DistributedDataParallel, "_run_ddp_forward", forward)
