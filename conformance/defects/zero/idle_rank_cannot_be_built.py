"""The groups of a rank that owns nothing are left out, and its local optimizer cannot be built without any."""

from impl.zero.optimizer import ZeroRedundancyOptimizer

from ..planting import swap

CLAUSES = ("ZERO-030",)


def plant() -> None:
    def local_groups(self: ZeroRedundancyOptimizer, rank: int) -> list:
        return [group for group in right(self, rank) if group["params"]]

    right = swap(ZeroRedundancyOptimizer, "_local_groups", local_groups)
