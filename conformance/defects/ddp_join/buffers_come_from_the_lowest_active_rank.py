"""Inside a context buffers come from the lowest rank that is still active."""

from impl.join.session import Session

from ..planting import edit

CLAUSES = ("DDPJ-024",)


def plant() -> None:
    edit(Session, "source", "ranks[-1]", "ranks[0]")
