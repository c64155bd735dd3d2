"""What lets survivors go on with a sharded optimizer: its copies, and how they become the state of fewer ranks."""

from __future__ import annotations

from collections.abc import Collection

from ..comm.collectives import broadcast_object
from ..comm.optimizer_states import by_place
from ..comm.ranks import GroupRank, Team
from .checkpoint import snapshot
from .copies import Copies
from .groups import settings_of
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
        told = snapshot(by_place(known, shard.parameters())), shard.counts.owned, shard.sent
        settings, owned, sent = broadcast_object(team, told, source, shard.device, "mirror: settings")
        shard.restore(team, copies.content(step, lost), settings, owned, copies.counters_after(step))
        shard.sent = sent
        self._publisher.publish()
        self._begin(step)

    def all_restored(self) -> None:
        """All ranks of the new team have gone back: the copies of before are not needed any more."""
        assert self._shard.copies is not None
        self._copies = self._shard.copies
