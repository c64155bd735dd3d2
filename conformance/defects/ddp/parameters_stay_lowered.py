"""After backward the parameters are what they were lowered to."""

from impl.ddp.mixed_precision import MixedPrecisionRun

from ..planting import edit

CLAUSES = ("DDP-135",)


def plant() -> None:
    edit(MixedPrecisionRun, "_restore", "parameter.data = full", "parameter.data = parameter.data.to(full.dtype)")
