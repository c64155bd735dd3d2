"""What is logged as an error is raised as a RuntimeError, whatever its class."""

from impl.ddp.parts import Parts

from ..planting import swap

CLAUSES = ("DDP-019", "DDP-142", "DDP-147")


def plant() -> None:
    right = swap(Parts, "_log_and_throw", lambda self, kind, text: right(self, RuntimeError, text))
