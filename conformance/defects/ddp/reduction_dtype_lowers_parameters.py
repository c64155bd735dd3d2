"""A dtype for the reduction alone lowers the parameters too."""

from impl.ddp.mixed_precision import MixedPrecisionRun

from ..planting import edit

CLAUSES = ("DDP-134",)


def plant() -> None:
    edit(
        MixedPrecisionRun,
        "before_forward",
        "low = self.config.param_dtype",
        "low = self.config.param_dtype or self.config.reduce_dtype",
    )
