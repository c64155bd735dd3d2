"""A static graph together with detection is accepted without a word."""

from impl.ddp import options

from ..planting import edit

CLAUSES = ("DDP-108",)


def plant() -> None:
    edit(options, "check_static_graph", "if ddp.find_unused_parameters:", "if ddp.find_unused_parameters is None:")
