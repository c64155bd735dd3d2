"""The first bucket says that it is the last one."""

from impl.ddp.reducer import Reducer

from ..planting import swap

CLAUSES = ("COMM-016", "COMM-026", "COMM-028")


def plant() -> None:
    swap(Reducer, "_is_last", lambda self, bucket: bucket is self.buckets[0])
