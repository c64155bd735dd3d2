"""The first iteration already uses buckets of the final size."""

from impl.ddp import plan

from ..planting import edit

CLAUSES = ("DDP-054",)


def plant() -> None:
    edit(plan, "first_plan", "expected_plan(specs, UNLIMITED)", "expected_plan(specs, caps)")
