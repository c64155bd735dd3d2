"""Bindings: the config and session that a context puts on its joinables, and how they come off again."""

from __future__ import annotations

from typing import Any

from .hooks import Joinable, _JoinConfig


class Binding:
    """What one context puts on one joinable, which remembers those whose blocks have begun, the innermost last."""

    def __init__(self, joinable: Joinable, config: _JoinConfig, session: object | None) -> None:
        self._joinable = joinable
        self._config = config
        self._session = session

    def __reduce__(self) -> Any:
        return type(None), ()  # a copy of a joinable is bound by nobody

    def put(self) -> None:
        """Let the joinable know of this context alone."""
        self._joinable._join_config = self._config
        self._joinable._join_session = self._session

    def open(self) -> None:
        """The block begins: this holds now, and again when blocks inside it end. (Another may have been put since.)"""
        self.put()
        self._joinable._join_bindings += (self,)

    def take_off(self) -> None:
        """The block is left: bring back the innermost one that is open; the disabled state if there is none.

        As a rule that is the one around this one. Blocks that are left in another order find their way back one by one.
        """
        joinable = self._joinable
        others = joinable._join_bindings = tuple(each for each in joinable._join_bindings if each is not self)
        if others and others[-1] is not None:  # as it is on a copy of a joinable
            others[-1].put()
            return
        joinable._join_config = _JoinConfig.construct_disabled_join_config()
        joinable._join_session = None
