"""Beside a model, the handle of a notification holds the context's message instead of the number of active ranks."""

from impl.join.exchange import Exchange

from ..planting import swap

CLAUSES = ("JOIN-031",)


def plant() -> None:
    swap(Exchange, "active", lambda _, sums: sums[:1])
