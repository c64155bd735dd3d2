"""Stamps: what a context writes on its joinables, and how all of it comes off again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .hooks import Joinable, _JoinConfig

if TYPE_CHECKING:
    from .session import Session


class Stamp:
    """One context's marks on one joinable, and the mark below it that comes back when this one comes off."""

    def __init__(self, joinable: Joinable, config: _JoinConfig, session: Session | None) -> None:
        self._joinable = joinable
        self._config = config
        self._session = session
        self.below: Stamp | None = None  # what comes back when this one comes off; set by put
        self.is_open = False  # the context is entered and not left; set by Stamps

    def put(self) -> None:
        """Make this the joinable's topmost stamp."""
        if self._joinable._join_stamp is not self:
            self.below = _topmost_open(self._joinable._join_stamp)
        self._write()

    def _write(self) -> None:
        self._joinable._join_stamp = self
        self._joinable._join_config = self._config
        self._joinable._join_session = self._session

    def take_off(self) -> None:
        """Bring back the stamp of the context around this one; the disabled state if there is none.

        A stamp on top whose context is open too stays: contexts that are left in another order than that of nesting
        find their way back one by one.
        """
        self.is_open = False
        top = self._joinable._join_stamp
        if top is not self and top is not None and top.is_open:
            return
        below = _topmost_open(self.below)
        if below is not None:
            below._write()
            return
        self._joinable._join_stamp = None
        self._joinable._join_config = _JoinConfig.construct_disabled_join_config()
        self._joinable._join_session = None


def _topmost_open(stamp: Stamp | None) -> Stamp | None:
    """The nearest stamp, from this one downwards, whose context is open. The others have had their time."""
    while stamp is not None and not stamp.is_open:
        stamp = stamp.below
    return stamp


class Stamps:
    """The stamps of one passage through a context, on all its joinables."""

    def __init__(self, joinables: Sequence[Joinable], enable: bool, throw: bool, session: Session | None) -> None:
        self._stamps = [
            Stamp(joinable, _JoinConfig(enable, throw, is_first_joinable=place == 0), session)
            for place, joinable in enumerate(joinables)
        ]

    def put(self) -> None:
        """Stamp every joinable (again, if another context was built in between)."""
        for stamp in self._stamps:
            stamp.put()

    def open(self) -> None:
        """The block begins: from here on the stamps come back when contexts inside it end."""
        for stamp in self._stamps:
            stamp.is_open = True

    def take_off(self) -> None:
        """Put every joinable back to where it was before this context."""
        for stamp in self._stamps:
            stamp.take_off()
