"""Further keywords of the live ranks' step() do not reach the shards of ranks that have joined."""

from impl.zero.joining import Joining

from ..planting import edit

CLAUSES = ("ZERO-022",)
WORLDS = (3,)


def plant() -> None:
    edit(Joining, "shadow_step", "zero._local_step(**self._arguments)", "zero._local_step()")
