"""skip_all_reduce_unused_params is accepted and has no effect."""

from impl.ddp.shared import SharedFacts

from ..planting import edit

CLAUSES = ("DDP-116",)


def plant() -> None:
    edit(SharedFacts, "__init__", "self._skip_unused = skip_unused", "self._skip_unused = False")
