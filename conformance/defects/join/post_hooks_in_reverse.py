"""The post hooks run in the reverse of the list's order."""

from impl.join.context import Join

from ..planting import edit

CLAUSES = ("JOIN-028",)


def plant() -> None:
    edit(Join, "_shadow_and_finish", "in self._join_hooks:", "in reversed(self._join_hooks):")
