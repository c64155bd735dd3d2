"""A joined rank sends its shard as it is, without stepping it."""

from impl.zero.joining import Joining

from ..planting import edit

CLAUSES = ("ZERO-020", "ZERO-022")


def plant() -> None:
    edit(Joining, "shadow_step", "        zero._local_step(**self._arguments)\n", "        pass\n")
