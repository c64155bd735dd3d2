"""A rank that shadowed runs its post hooks at the end of its shadowing and again when everybody has joined."""

from impl.join.context import Join

from ..planting import edit

CLAUSES = ("JOIN-028",)


def plant() -> None:
    edit(
        Join, "_shadow_and_finish",
        "    for hook in self._join_hooks:\n",
        "    for hook in [*self._join_hooks, *([] if is_last_joiner else self._join_hooks)]:\n",
    )
