"""A joinable that no context has stamped says that it is the first of its list."""

from impl.join.hooks import _JoinConfig

from ..planting import edit

CLAUSES = ("JOIN-003", "JOIN-008")
WORLDS = (1,)


def plant() -> None:
    edit(_JoinConfig, "construct_disabled_join_config", "is_first_joinable=False", "is_first_joinable=True")
