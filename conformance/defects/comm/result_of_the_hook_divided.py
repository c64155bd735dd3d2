"""The hook's result is divided once more."""

from typing import Any

import torch

from impl.ddp.traffic import Traffic

from ..planting import swap

CLAUSES = ("COMM-001", "COMM-013", "COMM-017", "COMM-019")


def plant() -> None:
    def result(self: Traffic, bucket: Any, value: Any) -> torch.Tensor:
        return right(self, bucket, value) / self.team.size

    right = swap(Traffic, "_hook_result", result)
