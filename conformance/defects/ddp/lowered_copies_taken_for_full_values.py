"""A second forward before backward takes the lowered parameters for the full ones."""

from impl.ddp.mixed_precision import MixedPrecisionRun

from ..planting import edit

CLAUSES = ("DDP-135",)


def plant() -> None:
    edit(MixedPrecisionRun, "before_forward", "    self._backward_over()\n", "")
