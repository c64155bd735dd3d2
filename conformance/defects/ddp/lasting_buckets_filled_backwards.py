"""Buckets that are never rebuilt are filled from the last registered parameter on, so the odd one comes last."""

from impl.ddp import plan

from ..planting import edit

CLAUSES = ("DDP-053",)


def plant() -> None:
    edit(plan, "first_plan", "UNLIMITED)", "UNLIMITED if will_be_rebuilt else caps)")
    edit(plan, "first_plan", "if will_be_rebuilt:", "if specs:")
