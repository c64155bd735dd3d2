"""Parameters of different dtypes travel in one bucket, in the dtype of its first."""

from impl.ddp import plan

from ..planting import edit

CLAUSES = ("DDP-052",)


def plant() -> None:
    edit(plan, "_filled", "kind = (spec.dtype, spec.device)", "kind = (spec.device, spec.device)")
