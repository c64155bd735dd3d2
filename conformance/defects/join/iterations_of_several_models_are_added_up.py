"""The skew that is warned of is the sum over all models of the context."""

from impl.join.session import Session

from ..planting import edit

CLAUSES = ("JOIN-035",)


def plant() -> None:
    edit(Session, "_count", "max(iterations.values())", "sum(iterations.values())")
