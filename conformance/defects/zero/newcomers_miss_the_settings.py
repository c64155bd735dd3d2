"""Settings are sent when they change, and not again when another rank joins that has missed them."""

from impl.zero.joining import Joining

from ..planting import edit

CLAUSES = ("ZERO-022",)
WORLDS = (3,)


def plant() -> None:
    edit(Joining, "_absent_ranks", "        self._channel.forget()\n", "")
