"""The config of a disabled joinable asks for throwing."""

from impl.join.hooks import _JoinConfig

from ..planting import edit

CLAUSES = ("JOIN-003", "JOIN-008")
WORLDS = (1,)


def plant() -> None:
    edit(_JoinConfig, "construct_disabled_join_config", "termination=False", "termination=True")
