"""A static graph may be set after training has begun."""

from impl.ddp import options

from ..planting import edit

CLAUSES = ("DDP-109",)


def plant() -> None:
    edit(
        options, "check_static_graph", "if ddp.reducer.forwards.latest is not None:", "if ddp.reducer.facts.rebuilt:"
    )
