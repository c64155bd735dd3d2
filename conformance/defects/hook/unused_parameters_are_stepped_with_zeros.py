"""A parameter that no rank used is stepped with zeros instead of being left alone."""

from impl.overlap.session import OverlapSession

from ..planting import edit

CLAUSES = ("HOOK-042",)


def plant() -> None:
    edit(OverlapSession, "_reduce", "untouched[place] if place in untouched else views[place]", "views[place]")
