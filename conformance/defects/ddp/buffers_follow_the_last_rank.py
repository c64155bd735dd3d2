"""Outside of joins, buffers follow the last rank of the group."""

from impl.comm.ranks import GroupRank
from impl.ddp.uneven import UnevenInputs

from ..planting import swap

CLAUSES = ("DDP-080",)


def plant() -> None:
    swap(UnevenInputs, "_source", lambda self: GroupRank(self.reducer.team.size - 1))
