"""Vectors are compressed like matrices."""

from impl.ddp.hooks import powersgd_plan

from ..planting import edit

CLAUSES = ("COMM-026",)


def plant() -> None:
    edit(
        powersgd_plan,
        "plan_layers",
        "len(shape) > 1 and (rows + columns) * min(rank, rows, columns) * min_rate < rows * columns",
        "len(shape) > 1",
    )
