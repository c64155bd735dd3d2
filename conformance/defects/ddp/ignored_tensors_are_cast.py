"""Ignored parameters and buffers are cast like managed ones."""

from impl.ddp.mixed_precision import MixedPrecisionRun

from ..planting import edit

CLAUSES = ("DDP-138",)


def plant() -> None:
    edit(MixedPrecisionRun, "__init__", "(ddp.module, ddp.parameters_to_ignore)", "(ddp.module, set())")
    edit(MixedPrecisionRun, "_cast_buffers", "(ddp.module, ddp.parameters_to_ignore)", "(ddp.module, set())")
