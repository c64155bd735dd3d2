"""A built-in hook does not count as a registration."""

from typing import Any

from impl.ddp import DistributedDataParallel

from ..planting import swap

CLAUSES = ("COMM-007",)


def plant() -> None:
    def register(self: DistributedDataParallel, kind: Any) -> None:
        self.reducer.traffic.hook = None
        right(self, kind)

    right = swap(DistributedDataParallel, "_register_builtin_comm_hook", register)
