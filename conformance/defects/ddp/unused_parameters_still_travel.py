"""skip_all_reduce_unused_params is accepted and has no effect."""

from impl.ddp.reducer import Reducer

from ..planting import edit

CLAUSES = ("DDP-116",)


def plant() -> None:
    edit(Reducer, "__init__", "self.skip_unused = skip_unused", "self.skip_unused = False")
