"""Each rank lays its buckets out by the order that it has seen itself, instead of the source's."""

import impl.ddp.stages

from ..planting import edit

CLAUSES = ("DDPJ-031",)


def plant() -> None:
    edit(impl.ddp.stages, "_replan", "reducer.rebuild(agreed.tolist())", "reducer.rebuild(reducer.proposed_order())")
