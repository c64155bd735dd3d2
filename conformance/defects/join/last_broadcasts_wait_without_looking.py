"""A rank that waits for the parameters of an overlapped step does not look out for failed peers."""

from impl.overlap.session import OverlapSession

from ..planting import edit

CLAUSES = ("JOIN-024",)


def plant() -> None:
    edit(OverlapSession, "_end", "transfer.finish(watch)", "transfer.finish()")
