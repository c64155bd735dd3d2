"""What the bucket holds becomes the gradients, not what the hook's future holds."""

from typing import Any

import torch

from impl.ddp.bucket import Bucket
from impl.ddp.traffic import Traffic

from ..planting import swap

CLAUSES = ("COMM-001",)


def plant() -> None:
    def result(self: Traffic, bucket: Bucket, value: Any) -> torch.Tensor:
        found = right(self, bucket, value)
        return found if bucket.flat is None else bucket.flat

    right = swap(Traffic, "_hook_result", result)
