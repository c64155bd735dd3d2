"""Each rank lays its buckets out in the order in which its own gradients came."""

from impl.ddp import stages

from ..planting import edit

CLAUSES = ("DDP-054",)


def plant() -> None:
    edit(
        stages,
        "_replan",
        "reducer.rebuild(agreed.tolist())",
        "reducer.rebuild(order.tolist() if agreed is None else reducer.proposed_order())",
    )
