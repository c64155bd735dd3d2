"""Notifications of a post hook count on ranks that came last, and on no others."""

from impl.join import Join

from ..planting import edit

CLAUSES = ("JOIN-055",)


def plant() -> None:
    edit(Join, "_shadow_and_finish", "    passage.end()\n", "")
