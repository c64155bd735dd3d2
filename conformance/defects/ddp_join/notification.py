"""Defects of area ddp_join: notify_join_context."""

from __future__ import annotations

from ..planting import defect, edit


@defect("JOIN-054")
def early_announcement_is_not_shadowed() -> None:
    """A reduction that the roll call announced is forgotten, where the iteration has no backward."""
    edit("self._follow(act)", "pass")


@defect("JOIN-054")
def who_was_alone_reduces_alone() -> None:
    """A rank that was alone in one context leaves the others out of a reduction that they wait for in the next."""
    edit("self.alone = session is not None and", "self.was_alone = self.alone = session is not None and")
    edit("last=last, alone=False)", "last=last, alone=getattr(self, 'was_alone', False))")
