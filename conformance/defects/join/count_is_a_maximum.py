"""The handshake takes the maximum instead of the sum: anybody is active, but not how many."""

import impl.join.plain

from ..planting import edit

CLAUSES = ("JOIN-031", "JOIN-045")


def plant() -> None:
    edit(
        impl.join.plain, "count",
        "collectives.all_reduce(team, number, label)",
        "collectives.all_reduce(team, number, label, torch.distributed.ReduceOp.MAX)",
    )
