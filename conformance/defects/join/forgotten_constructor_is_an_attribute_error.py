"""A joinable whose constructor forgot the base's fails with a bare AttributeError."""

from impl.join.context import Join

from ..planting import edit

CLAUSES = ("JOIN-050",)
WORLDS = (1,)


def plant() -> None:
    edit(Join, "notify_join_context", 'getattr(joinable, "_join_config", None)', "joinable._join_config")
