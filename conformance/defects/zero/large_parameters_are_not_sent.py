"""Parameters that are large enough to travel by themselves are stepped by their owner and not sent."""

from impl.zero.publish import Publisher

from ..planting import edit

CLAUSES = ("ZERO-008",)


def plant() -> None:
    edit(Publisher, "_add", " + [[member] for member in large]", "")
