"""Without a consolidation the state dictionary holds this rank's shard, without an error."""

from impl.zero.sharded import Sharded

from ..planting import edit

CLAUSES = ("ZERO-015",)


def plant() -> None:
    edit(
        Sharded, "state_dict",
        "    if self._consolidated is None:\n",
        "    if self._consolidated is None:\n        return super().state_dict()\n    if self._consolidated is None:\n",
    )
