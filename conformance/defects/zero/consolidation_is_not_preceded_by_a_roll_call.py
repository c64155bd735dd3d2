"""A consolidation trusts the last roll call, since which another rank may have run out."""

from impl.zero.joining import Joining

from ..planting import edit

CLAUSES = ("ZERO-020",)


def plant() -> None:
    edit(Joining, "consolidate", "session.begin(self._zero)\n", "pass\n")
