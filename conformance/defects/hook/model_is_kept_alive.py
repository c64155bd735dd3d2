"""The made hook holds the model itself, not a weak reference to it."""

from impl.overlap.session import OverlapSession

from ..planting import edit

CLAUSES = ("HOOK-008",)


def plant() -> None:
    edit(OverlapSession, "__init__", "self._ddp = weakref.ref(ddp)", "self._ddp = lambda: ddp")
