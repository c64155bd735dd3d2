"""A state that was consolidated a moment ago is said to be as old as the optimizer."""

from impl.zero.sharded import Sharded

from ..planting import edit

CLAUSES = ("ZERO-016",)


def plant() -> None:
    edit(Sharded, "_consolidate", "    self._steps_since_consolidation = 0", "")
