"""The reduction of delayed gradients waits for the next backward."""

from impl.ddp.delayed import DelayedReduction

from ..planting import edit

CLAUSES = ("DDP-122",)


def plant() -> None:
    edit(DelayedReduction, "_triggered", "kernels.call_at_end_of_backward(self._reduce)", "self._due = not self._flats")
