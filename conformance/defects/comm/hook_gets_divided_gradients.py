"""The bucket is divided before the hook sees it."""

from typing import Any

from impl.ddp import kernels
from impl.ddp.traffic import Traffic

from ..planting import swap

CLAUSES = ("COMM-002", "COMM-001")


def plant() -> None:
    def start(self: Traffic, hook: Any, bucket: Any, flat: Any, last: bool) -> Any:
        kernels.divide(flat, self.team.size)
        return right(self, hook, bucket, flat, last)

    right = swap(Traffic, "_start_hook", start)
