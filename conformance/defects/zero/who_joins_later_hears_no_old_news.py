"""A rank that joins is not sent what ranks that joined before it have been sent already."""

from impl.zero.joining import Joining

from ..planting import edit

CLAUSES = ("ZERO-020",)
WORLDS = (3,)


def plant() -> None:
    edit(Joining, "_absent_ranks", "        self._channel.forget()\n", "")
