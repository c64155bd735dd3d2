"""Parameters without a gradient are not raised again after backward."""

from impl.ddp.mixed_precision import MixedPrecisionRun

from ..planting import edit

CLAUSES = ("DDP-135",)


def plant() -> None:
    edit(MixedPrecisionRun, "_backward_ended", "self._backward_over()", "self._armed = False")
