"""A message in which live ranks begin different iterations is read as if they began the first of them."""

from impl.join.message import Layout

from ..planting import edit

CLAUSES = ("JOIN-040",)


def plant() -> None:
    edit(Layout, "read", " or any(slot not in (0, active) for slot in slots)", "")
