"""Defects of area join: abstract interfaces."""

from __future__ import annotations

from abc import update_abstractmethods
from collections.abc import Iterator
from dataclasses import astuple, dataclass
from typing import NamedTuple

import impl.join
import impl.join.hooks
from impl.join.hooks import Joinable, JoinHook

from ..planting import defect, edit, swap


@defect("JOIN-004", worlds=(1,))
def base_constructor_ends_the_chain() -> None:
    """The base constructor does not call the constructors of the other bases."""
    edit("    super().__init__()\n", "", within="Joinable.__init__")


@defect("JOIN-006")
def base_main_hook_must_be_overridden() -> None:
    """The base main hook raises, so a hook cannot override its post hook alone."""
    def main_hook(self: JoinHook) -> None:
        raise NotImplementedError(type(self).__name__)

    swap(JoinHook, "main_hook", main_hook)


@defect("JOIN-007", worlds=(1,))
def config_can_be_changed() -> None:
    """The config is an ordinary object that anybody may change, instead of an immutable record."""

    @dataclass
    class Config:
        enable: bool
        throw_on_early_termination: bool
        is_first_joinable: bool

        def __iter__(self) -> Iterator[bool]:
            return iter(astuple(self))

        @staticmethod
        def construct_disabled_join_config() -> Config:
            return Config(enable=False, throw_on_early_termination=False, is_first_joinable=False)


    swap(impl.join.hooks, "_JoinConfig", Config)


@defect("JOIN-007", worlds=(1,))
def config_in_another_order() -> None:
    """The config's fields stand in another order: throwing comes before enabling."""

    class Config(NamedTuple):
        throw_on_early_termination: bool
        enable: bool
        is_first_joinable: bool

        @staticmethod
        def construct_disabled_join_config() -> Config:
            return Config(enable=False, throw_on_early_termination=False, is_first_joinable=False)


    swap(impl.join.hooks, "_JoinConfig", Config)


@defect("JOIN-002", worlds=(1,))
def constructor_is_not_abstract() -> None:
    """A joinable need not have a constructor of its own: the base's is no abstract method."""
    swap(Joinable, "__abstractmethods__", Joinable.__abstractmethods__)  # so that it comes back
    edit("@abstractmethod\n", "", within="__init__")
    update_abstractmethods(Joinable)


@defect("JOIN-002", worlds=(1,))
def device_is_not_abstract() -> None:
    """A joinable without a device can be made, and fails only in a context."""
    swap(Joinable, "__abstractmethods__", Joinable.__abstractmethods__)  # so that it comes back
    swap(Joinable, "join_device", property(lambda self: None))
    update_abstractmethods(Joinable)


@defect("JOIN-005")
def device_may_be_a_method() -> None:
    """A device that is a plain method is called without a word, instead of being refused as no property."""

    IF_METHOD = "joinable.join_device() if callable(joinable.join_device) else joinable.join_device"


    edit("Any = joinable.join_device\n", f"Any = {IF_METHOD}\n")
    edit("torch.device(joinable.join_device)", f"torch.device({IF_METHOD})", within="notify")


@defect("JOIN-003", "JOIN-008", worlds=(1,))
def disabled_config_throws() -> None:
    """The config of a disabled joinable asks for throwing."""
    edit("termination=False", "termination=True", within="construct_disabled_join_config")


@defect("JOIN-001", worlds=(1,))
def exports_the_config() -> None:
    """The join module exports its private config beside the three public names."""
    swap(impl.join, "__all__", ["Join", "JoinHook", "Joinable", "_JoinConfig"])


@defect("JOIN-003", "JOIN-049", worlds=(1,))
def fresh_joinable_has_no_config() -> None:
    """A joinable has no config before the first context stamps it."""
    edit("_JoinConfig.construct_disabled_join_config()", "None", within="__init__")


@defect("JOIN-003", "JOIN-008", worlds=(1,))
def fresh_joinable_is_first() -> None:
    """A joinable that no context has stamped says that it is the first of its list."""
    edit("is_first_joinable=False", "is_first_joinable=True")


@defect("JOIN-009")
def keywords_reach_the_first_only() -> None:
    """Only the first joinable of the list is handed the context's keywords."""
    edit("made_hook(joinable, kwargs)", "made_hook(joinable, {} if place else kwargs)")
