"""A static graph expects each parameter once, however often it arrived in the first iteration."""

from impl.ddp.reducer import Reducer

from ..planting import edit

CLAUSES = ("DDP-111",)


def plant() -> None:
    edit(Reducer, "_learn_static_graph", "is None else -need", "is None else 1")
