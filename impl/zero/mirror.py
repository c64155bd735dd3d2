"""What lets survivors go on with a sharded optimizer: its copies, and how they become the state of fewer ranks."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ..comm.collectives import all_gather_object, broadcast_object
from ..comm.optimizer_states import by_place
from ..comm.ranks import GroupRank, Team
from .checkpoint import snapshot
from .copies import Content, Copies
from .group_counts import taken_out
from .groups import Group, settings_of
from .publisher import Publisher
from .shard import Shard


class Mirror:
    """The copies of one ZeroRedundancyOptimizer's shards; its method ``keep_mirror`` makes it, on every rank."""

    def __init__(self, shard: Shard, publisher: Publisher, distance: int, former: Mirror | None) -> None:
        """``former``: the one that it replaces, whose steps have other numbers than ours."""
        self._shard = shard
        self._publisher = publisher
        self._distance = distance
        self._first = 0 if former is None else former.number + 1
        self._copies = self._begin(self._first)

    def _begin(self, step: int) -> Copies:
        copies = Copies(self._distance, self._shard.team)
        self._shard.copy_into(copies, step)
        self._shard.copies = copies  # now that the first exchange has not failed
        return copies

    @property
    def team(self) -> Team:
        """The ranks that share the state."""
        return self._copies.team

    @property
    def steps(self) -> int:
        """How many steps have been copied to the end on this rank, since the mirror was made."""
        return self.number - self._first

    @property
    def number(self) -> int:
        """That of the last step that has been copied to the end on this rank."""
        return self._copies.steps

    def held(self) -> dict[int, list[int]]:
        """By group rank: the steps after which this rank holds a copy of that one's shard."""
        self._shard.look_at_parameters()  # of others than those that are there now nobody can go on
        return self._copies.held()

    def restore(self, team: Team, step: int, lost: Collection[int], source: GroupRank) -> None:
        """Go back to what was there after this step, on the ranks of another team; call it on each of them.

        ``lost``: the group ranks that are not among them. ``source``: a rank of the new team, whose settings count.
        Until ``all_restored`` the copies of before are kept, so that it can be called again for fewer ranks.
        """
        shard, copies = self._shard, self._copies
        known = copies.settings_after(step) or settings_of(shard.exposed.param_groups)
        told = snapshot(by_place(known, shard.parameters())), shard.sent, shard.counts.to_follow()
        settings, sent, to_follow = broadcast_object(team, told, source, shard.device, "mirror: settings")
        content = copies.content(step, lost)
        self._add_counts(team, content, settings, to_follow)
        shard.restore(team, content, settings, copies.counters_after(step))
        shard.take_settings(settings, sent)
        self._publisher.publish()
        self._begin(step)

    def _add_counts(
        self, team: Team, content: Content, settings: list[Group], to_follow: Sequence[Collection[str]]
    ) -> None:
        """Take the counts in groups out of the content; all that the source is not to be followed in counts."""
        own_counts = taken_out(content)
        for told in all_gather_object(team, own_counts, self._shard.device, "mirror: counts in groups"):
            for place, counts in told.items():
                of_source = to_follow[place] if place < len(to_follow) else ()
                settings[place].update({key: value for key, value in counts.items() if key not in of_source})

    def all_restored(self) -> None:
        """All ranks of the new team have gone back: the copies of before are not needed any more."""
        assert self._shard.copies is not None
        self._copies = self._shard.copies
