"""Replicas start equal to the last rank of the group instead of the first."""

from impl.ddp import DistributedDataParallel

from ..planting import edit

CLAUSES = ("DDP-025",)


def plant() -> None:
    edit(DistributedDataParallel, "_synchronise_start", "GroupRank(0)", "GroupRank(team.size - 1)")
