"""The logging data do not say that the graph is static."""

from impl.ddp.log import DDPLogger

from ..planting import swap

CLAUSES = ("DDP-145",)


def plant() -> None:
    swap(DDPLogger, "_set_static_graph", lambda self: None)
