"""The first buckets hold the parameters that were registered first."""

from impl.ddp import plan

from ..planting import edit

CLAUSES = ("DDP-053",)


def plant() -> None:
    edit(plan, "first_plan", ", reverse=True)", ")")
    edit(plan, "expected_plan", "range(len(specs) - 1, -1, -1)", "range(len(specs))")
