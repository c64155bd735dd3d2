"""After a forward that raised the parameters stay in low precision until the next one."""

from impl.ddp.mixed_precision import MixedPrecisionRun

from ..planting import edit

CLAUSES = ("DDP-135",)


def plant() -> None:
    edit(MixedPrecisionRun, "after_forward", "if failed or not", "if not")
