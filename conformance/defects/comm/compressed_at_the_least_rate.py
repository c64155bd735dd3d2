"""PowerSGD also compresses a matrix that shrinks by the least rate and no more."""

from impl.ddp.hooks import powersgd_plan

from ..planting import edit

CLAUSES = ("COMM-026",)


def plant() -> None:
    edit(powersgd_plan, "plan_layers", "* min_rate < rows * columns", "* min_rate <= rows * columns")
