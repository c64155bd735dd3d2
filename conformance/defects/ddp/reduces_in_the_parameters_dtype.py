"""With both given, gradients travel in the parameters' dtype, not in the reduction's."""

from impl.ddp.mixed_precision import MixedPrecisionRun

from ..planting import edit

CLAUSES = ("DDP-136",)


def plant() -> None:
    edit(
        MixedPrecisionRun,
        "reduced_specs",
        "self.config.reduce_dtype or self.config.param_dtype",
        "self.config.param_dtype or self.config.reduce_dtype",
    )
