"""A joinable has no config before the first context stamps it."""

from impl.join.hooks import Joinable

from ..planting import edit

CLAUSES = ("JOIN-003", "JOIN-049")
WORLDS = (1,)


def plant() -> None:
    edit(Joinable, "__init__", "_JoinConfig.construct_disabled_join_config()", "None")
