"""The groups of a rank that owns nothing are left out, and its local optimizer cannot be built without any."""

from impl.zero.sharded import Sharded

from ..planting import swap

CLAUSES = ("ZERO-030",)


def plant() -> None:
    def local_groups(self: Sharded, rank: int) -> list:
        return [group for group in right(self, rank) if group["params"]]

    right = swap(Sharded, "_local_groups", local_groups)
