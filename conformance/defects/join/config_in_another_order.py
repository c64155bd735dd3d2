"""The config's fields stand in another order: throwing comes before enabling."""

from typing import NamedTuple

import impl.join.hooks

from ..planting import swap

CLAUSES = ("JOIN-007",)
WORLDS = (1,)


class Config(NamedTuple):
    throw_on_early_termination: bool
    enable: bool
    is_first_joinable: bool

    @staticmethod
    def construct_disabled_join_config() -> "Config":
        return Config(enable=False, throw_on_early_termination=False, is_first_joinable=False)


def plant() -> None:
    swap(impl.join.hooks, "_JoinConfig", Config)
