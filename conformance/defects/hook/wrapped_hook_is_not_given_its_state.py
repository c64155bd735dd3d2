"""The wrapped hook is called without the state that was registered."""

from impl.overlap.reduction import WrappedReduction

from ..planting import edit

CLAUSES = ("HOOK-009",)


def plant() -> None:
    edit(WrappedReduction, "__init__", "hook(state, bucket)", "hook(None, bucket)")
