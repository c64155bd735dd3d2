"""A live rank that waits for the owners of a sharded step does not look out for failed peers."""

from impl.zero.joining import Joining

from ..planting import edit

CLAUSES = ("JOIN-024",)
WORLDS = (3,)


def plant() -> None:
    edit(Joining, "step", "zero._sync_params(session.watch)", "zero._sync_params()")
