"""What a rank keeps of a process group from one context to the next. It hangs on the group, never on its name."""

from __future__ import annotations

from collections import Counter
from weakref import WeakKeyDictionary, WeakValueDictionary

import torch.distributed as dist

from ..comm.ranks import Team


class GroupRecord:
    """A group as this rank knows it since the first context over it, which all its ranks have entered together."""

    def __init__(self, team: Team, token: str) -> None:
        #: begins all keys of the group in the store; equal on all its ranks, and no other group's
        self.token = token
        #: the key of the session that this rank has left last
        self.left = ""
        #: keys that this rank has set for the last sessions; in_step.py takes older ones back
        self.published: list[str] = []
        #: how many plans for models on it to go on without lost ranks have been agreed on (ddp/survivors.py)
        self.regroups = 0
        #: by global ranks: the groups that have come of it in that way; the same mapping in each of them
        self.smaller: WeakValueDictionary[tuple[int, ...], dist.ProcessGroup] = WeakValueDictionary()
        #: the number of the session that has begun last in the one around it, with those of the ones around
        self._numbers: tuple[int, ...] = ()
        self._tally = team.tally
        self._before = team.tally.started

    @property
    def started(self) -> int:
        """How many collectives this rank has started on it since the first context over it began."""
        return self._tally.started - self._before

    def next_session_key(self) -> str:
        """A key for the session that begins now, equal on all ranks: they enter the contexts of a group together.

        Those inside another are numbered there: a rank that fails around them enters fewer than its peers.
        """
        *around, last = (*self._numbers, 0)[: len(self._tally.blocks) + 1]
        self._numbers = (*around, last + 1)
        return self.session_key

    @property
    def session_key(self) -> str:
        """The key of the session that has begun last."""
        return "/".join(map(str, (self.token, *self._numbers)))


_records: WeakKeyDictionary[dist.ProcessGroup, GroupRecord] = WeakKeyDictionary()
#: How many groups of a name have entered a context, in each world. A rank that is replaced begins a new world with the
#: others, which has a store of its own (torch's groups could not meet over the old one), so all count from one.
_of_a_name: WeakKeyDictionary[dist.ProcessGroup, Counter[str]] = WeakKeyDictionary()


def record_of(team: Team) -> GroupRecord:
    """What this rank keeps of the team's group."""
    record = _records.get(team.group)
    if record is None:
        record = _records[team.group] = GroupRecord(team, _new_token(team.group))
    return record


def _new_token(group: dist.ProcessGroup) -> str:
    try:
        name = str(group.group_name)
    except RuntimeError:  # a group that torch.distributed was never told of; it has no store either
        name = "unnamed"
    world = dist.group.WORLD
    numbers = Counter[str]() if world is None else _of_a_name.setdefault(world, Counter())
    numbers[name] += 1
    return f"join/{name}/{numbers[name]}"
