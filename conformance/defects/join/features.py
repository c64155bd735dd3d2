"""Defects of area join: interplay with other ddp features."""

from __future__ import annotations

from ..planting import defect, edit


@defect("DDPJ-034")
def messages_between_two_ranks_are_counted() -> None:
    """Whether ranks are in step is told by all that they have started, messages between two of them included."""
    for name in ("send", "receive"):
        edit("    trace.note(label)\n", "    trace.note(label)\n    team.tally.count()\n", within=name)


@defect("DDPJ-034")
def notes_of_the_past_are_read() -> None:
    """A failure in one context is taken for one in the contexts that follow."""
    edit("self._sessions += 1", "self._sessions = 1")
