"""skip_all_reduce_unused_params is accepted and has no effect."""

from impl.ddp.planner import Planner

from ..planting import edit

CLAUSES = ("DDP-116",)


def plant() -> None:
    edit(Planner, "__init__", "self._skip_unused = skip_unused", "self._skip_unused = False")
