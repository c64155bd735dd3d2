"""With an epsilon, columns are divided by it and not by their norm."""

from impl.ddp.hooks import powersgd_plan

from ..planting import edit

CLAUSES = ("COMM-026",)


def plant() -> None:
    edit(powersgd_plan, "_gram_schmidt", "column / (norm + epsilon)", "column / (epsilon or norm)")
