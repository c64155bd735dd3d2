"""Who takes part: a process group seen from one of its members, with group ranks and global ranks kept apart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NewType

import torch.distributed as dist

GroupRank = NewType("GroupRank", int)
GlobalRank = NewType("GlobalRank", int)


@dataclass(frozen=True)
class Team:
    """A process group together with this process's place in it.

    Every rank that our code passes around says of what: ``GroupRank`` counts inside the team, ``GlobalRank`` in the
    whole world. The two are equal only by chance (a subgroup need not start at global rank 0).
    """

    group: dist.ProcessGroup
    rank: GroupRank
    size: int

    @staticmethod
    def of(group: dist.ProcessGroup | None = None) -> Team:
        """The team of ``group``; the default group when it is None. ValueError if torch.distributed is not set up."""
        if group is None:
            group = dist.group.WORLD
            if group is None:
                raise ValueError("There is no default process group yet: call init_process_group first.")
        if isinstance(group, dist.ProcessGroup):  # asked itself: torch.distributed need not have been told of it
            return Team(group, GroupRank(group.rank()), group.size())
        return Team(group, GroupRank(dist.get_rank(group)), dist.get_world_size(group))

    def global_rank(self, rank: GroupRank) -> GlobalRank:
        """The global rank of the member with this group rank.

        ValueError for a group that torch.distributed was never told of (one of a class of the user's own).
        """
        return GlobalRank(dist.get_global_rank(self.group, rank))

    @property
    def members(self) -> range:
        return range(self.size)
