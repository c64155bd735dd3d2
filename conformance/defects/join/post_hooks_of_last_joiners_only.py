"""Only the last joiners run their post hooks."""

from impl.join.context import Join

from ..planting import edit

CLAUSES = ("JOIN-028", "JOIN-030")


def plant() -> None:
    edit(
        Join, "_shadow_and_finish",
        "in self._join_hooks:",
        "in self._join_hooks if is_last_joiner else ():",
    )
