"""After a forward without gradients the parameters stay in low precision."""

from impl.ddp.mixed_precision import MixedPrecisionRun

from ..planting import swap

CLAUSES = ("DDP-135",)


def plant() -> None:
    swap(MixedPrecisionRun, "after_forward", lambda self: None)
