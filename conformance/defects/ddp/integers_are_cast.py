"""Integer inputs are cast to the low precision like floating ones."""

from impl.ddp.mixed_precision import MixedPrecisionRun

from ..planting import edit

CLAUSES = ("DDP-137",)


def plant() -> None:
    edit(MixedPrecisionRun, "_lowered", "tensor.to(low) if tensor.is_floating_point() else tensor", "tensor.to(low)")
