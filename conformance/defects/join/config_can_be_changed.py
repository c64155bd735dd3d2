"""The config is an ordinary object that anybody may change, instead of an immutable record."""

from collections.abc import Iterator
from dataclasses import astuple, dataclass

import impl.join.hooks

from ..planting import swap

CLAUSES = ("JOIN-007",)
WORLDS = (1,)


@dataclass
class Config:
    enable: bool
    throw_on_early_termination: bool
    is_first_joinable: bool

    def __iter__(self) -> Iterator[bool]:
        return iter(astuple(self))

    @staticmethod
    def construct_disabled_join_config() -> "Config":
        return Config(enable=False, throw_on_early_termination=False, is_first_joinable=False)


def plant() -> None:
    swap(impl.join.hooks, "_JoinConfig", Config)
