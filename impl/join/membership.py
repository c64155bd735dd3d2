"""Who is active in a session, as the control messages say that have been read so far."""

from __future__ import annotations

from ..comm.ranks import GroupRank, Team


class Membership:
    """The active ranks. What the last message said is equal on all ranks at equal places of the program.

    A message without active ranks is the last of a session and changes nothing.
    """

    def __init__(self, team: Team) -> None:
        #: the highest active rank: whose buffers and parameters count
        self.source = GroupRank(team.size - 1)
        self._everyone = tuple(GroupRank(rank) for rank in team.members)
        self.update(self._everyone)

    def update(self, ranks: tuple[GroupRank, ...]) -> None:
        """A message that told of these active ranks, ascending, has been read."""
        self.earlier_source = self.source  # as the message before it said
        self.ranks = ranks
        self.active = len(ranks)
        self.source = ranks[-1]

    def gather(self) -> None:
        """All have run out and take part alike in what follows; the source stays the same."""
        self.ranks, self.active = self._everyone, len(self._everyone)
