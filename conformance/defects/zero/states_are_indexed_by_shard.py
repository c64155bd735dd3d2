"""A rank's states are indexed by their place in its shard, so those of several ranks overwrite each other."""

from impl.zero.sharded import Sharded

from ..planting import edit

CLAUSES = ("ZERO-016",)


def plant() -> None:
    edit(
        Sharded, "_own_states",
        "enumerate(self._parameters())",
        "enumerate(self._shard(self._team.rank))",
    )
