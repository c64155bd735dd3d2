"""Only the first joinable of the list is handed the context's keywords."""

from impl.join.context import Join

from ..planting import edit

CLAUSES = ("JOIN-009",)


def plant() -> None:
    edit(
        Join, "__init__",
        "[joinable.join_hook(**kwargs) for joinable in self._joinables]",
        "[each.join_hook(**({} if place else kwargs)) for place, each in enumerate(self._joinables)]",
    )
