"""A connection for each direction between two hosts: what one rank sends does not wait for what the other sends.

Gloo has one connection for a pair of ranks, and sends nothing before the receiver has said that it is ready. That is
said behind whatever the receiver is sending itself, so large messages in opposite directions take turns (2 hosts, 500
Mbit/s, BERT-base: reduced to the owners and published in 194 ms over one connection, in 146 ms over two). With more
ranks a ring sends one way only.
"""

from __future__ import annotations

from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist

from .local_groups import global_ranks_of, new_local_group
from .placement import on_one_host
from .ranks import GroupRank, Team
from .tally import count_together

#: by group, the teams over which rank 0 and rank 1 send; empty where they send over the group itself
_ways: WeakKeyDictionary[dist.ProcessGroup, tuple[Team, ...]] = WeakKeyDictionary()


def way_from(source: GroupRank, team: Team, device: torch.device) -> Team:
    """The team over which ``source`` sends what lies on ``device``: the same ranks, numbered alike.

    Call it on every rank alike: the first call for a group may be a collective.
    """
    if team.size != 2 or device.type != "cpu" or team.is_strict:  # strict: one message at a time in any case
        return team
    if team.group not in _ways:
        _ways[team.group] = () if on_one_host(team, device) else _each_way(team)
    return (_ways[team.group] or (team, team))[source]


def _each_way(team: Team) -> tuple[Team, ...]:
    members = global_ranks_of(team.group)
    if not members:
        return ()
    ways = [new_local_group(members, backend="gloo", group_desc=f"joinery: rank {rank} sends") for rank in team.members]
    count_together(team.group, ways)
    return tuple(map(Team.of, ways))
