"""Sparse gradients reach joined ranks only where settings have changed."""

from impl.zero.news import NewsChannel

from ..planting import edit

CLAUSES = ("ZERO-022",)


def plant() -> None:
    edit(NewsChannel, "exchange", " or bool(sparse)", "")
