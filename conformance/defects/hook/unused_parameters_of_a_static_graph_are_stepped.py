"""What a static graph never uses is stepped with the zeros that were reduced for it."""

from impl.overlap.session import OverlapSession

from ..planting import edit

CLAUSES = ("HOOK-018",)


def plant() -> None:
    edit(OverlapSession, "_untouched", "never = ddp.reducer.never_used", "never = frozenset()")
