"""A follower that ends iterations calls no roll, even if it is listed and begins before the model."""

from impl.join.session import Session

from ..planting import edit

CLAUSES = ("ZERO-020",)


def plant() -> None:
    edit(Session, "__init__", "self._leaders = _leaders(hooks)", "self._leaders = frozenset(p for p, hook in enumerate(hooks) if getattr(hook, 'leads', False))")
