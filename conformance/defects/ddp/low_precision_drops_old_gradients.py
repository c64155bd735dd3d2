"""What a parameter had accumulated is lost where an iteration in low precision leaves it out."""

from impl.ddp.mixed_precision import MixedPrecisionRun

from ..planting import edit

CLAUSES = ("DDP-140",)


def plant() -> None:
    edit(MixedPrecisionRun, "_restore", "parameter.grad = kept\n", "pass\n")
