"""A rank that owns nothing leaves step() at once, and with it the others' transfers."""

from impl.zero.optimizer import ZeroRedundancyOptimizer

from ..planting import edit

CLAUSES = ("ZERO-030",)


def plant() -> None:
    edit(
        ZeroRedundancyOptimizer, "step",
        "    session = self._join_session\n",
        "    if not self._shard(self._team.rank):\n        return None\n    session = self._join_session\n",
    )
