"""Without a subgroup, post-local SGD takes each rank for a machine of its own."""

from impl.ddp.hooks import post_localSGD_hook

from ..planting import edit

CLAUSES = ("COMM-028",)


def plant() -> None:
    edit(post_localSGD_hook, "_machine_group", "if machines[rank] == machine", "if rank == team.rank")
