"""Parameters of different dtypes travel in one bucket, in the dtype of its first."""

from impl.ddp import plan

from ..planting import edit

CLAUSES = ("DDP-052",)


def plant() -> None:
    edit(
        plan,
        "plan_buckets",
        "setdefault((spec.dtype, spec.device), _Filling())",
        "setdefault((spec.device, spec.device), _Filling())",
    )
    edit(plan, "plan_buckets", "filling.pop((spec.dtype, spec.device))", "filling.pop((spec.device, spec.device))")
