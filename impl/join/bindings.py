"""Bindings: the config and session that a context puts on its joinables, and how they come off again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .hooks import FollowedSession, Joinable, _FollowedJoinConfig, _JoinConfig


class Binding:
    """What one context puts on one joinable, and the binding below, which comes back when this one comes off."""

    def __init__(self, joinable: Joinable, config: _JoinConfig, session: FollowedSession | None) -> None:
        self._joinable = joinable
        self._config = config
        self._session = session
        self.below: Binding | None = None  # what comes back when this one comes off; set by put
        self.is_open = False  # the context is entered and not left; set by Bindings

    def __reduce__(self) -> Any:
        return type(None), ()  # a copy of a joinable is bound by nobody

    def put(self) -> None:
        """Make this the joinable's topmost binding."""
        top = _top(self._joinable)
        if top is not self:
            self.below = _topmost_open(top)
        self._write()

    def _write(self) -> None:
        self._joinable._join_binding = self
        self._joinable._join_config = self._config
        self._joinable._join_session = self._session

    def take_off(self) -> None:
        """Bring back the binding of the context around this one; the disabled state if there is none.

        A binding on top whose context is open too stays: contexts that are left in another order than that of nesting
        find their way back one by one.
        """
        self.is_open = False
        open_one = _topmost_open(_top(self._joinable))
        if open_one is not None:
            open_one._write()
            return
        self._joinable._join_binding = None
        self._joinable._join_config = _JoinConfig.construct_disabled_join_config()
        self._joinable._join_session = None


def _top(joinable: Joinable) -> Binding | None:
    top = joinable._join_binding
    return top if isinstance(top, Binding) else None


def _topmost_open(binding: Binding | None) -> Binding | None:
    """The nearest binding, from this one downwards, whose context is open. The others have had their time."""
    while binding is not None and not binding.is_open:
        binding = binding.below
    return binding


class Bindings:
    """The bindings of one session, on all its joinables."""

    def __init__(
        self,
        joinables: Sequence[Joinable],
        enable: bool,
        throw: bool,
        session: FollowedSession | None,
        *,
        followed: bool = False,
    ) -> None:
        config = _FollowedJoinConfig if followed else _JoinConfig
        self._bindings = [
            Binding(joinable, config(enable, throw, is_first_joinable=place == 0), session)
            for place, joinable in enumerate(joinables)
        ]

    def put(self) -> None:
        """Bind every joinable (again, if another context was built in between)."""
        for binding in self._bindings:
            binding.put()

    def open(self) -> None:
        """The block begins: from here on the bindings come back when contexts inside it end."""
        for binding in self._bindings:
            binding.is_open = True

    def take_off(self) -> None:
        """Put every joinable back to where it was before this context."""
        for binding in self._bindings:
            binding.take_off()
