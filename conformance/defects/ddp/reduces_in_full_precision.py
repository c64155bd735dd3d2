"""Without a dtype for the reduction gradients travel in full precision."""

from impl.ddp.mixed_precision import MixedPrecisionRun

from ..planting import edit

CLAUSES = ("DDP-136",)


def plant() -> None:
    edit(
        MixedPrecisionRun,
        "reduced_specs",
        "self.config.reduce_dtype or self.config.param_dtype",
        "self.config.reduce_dtype",
    )
