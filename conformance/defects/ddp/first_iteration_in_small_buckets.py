"""The first iteration already uses buckets of the final size."""

from impl.ddp import plan

from ..planting import edit

CLAUSES = ("DDP-054",)


def plant() -> None:
    edit(plan, "first_plan", "UNLIMITED if will_be_rebuilt else caps", "caps")
