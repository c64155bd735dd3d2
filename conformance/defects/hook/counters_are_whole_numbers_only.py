"""What an optimizer counts in fractions is counted once for each part of a step."""

from impl.zero import overlapping

from ..planting import edit

CLAUSES = ("HOOK-018",)


def plant() -> None:
    edit(overlapping, "counters", "(int, float)", "(int,)")
