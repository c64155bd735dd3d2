"""In a second context joined ranks are not told settings that were the last ones to be told in the first."""

from impl.zero.joining import Joining

from ..planting import edit

CLAUSES = ("ZERO-020",)


def plant() -> None:
    edit(Joining, "_absent_ranks", "self._session is None or self._session() is not session", "self._session is None")
