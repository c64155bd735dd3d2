"""Process groups that only their members make, while the other ranks of the world go on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch.distributed as dist
from torch.distributed.distributed_c10d import _world

_APART = 2**40  # more groups than torch will ever have counted
#: by world, how many groups of the same ranks there have been: alike on all of them, since all of them make each
_made: WeakKeyDictionary[dist.ProcessGroup, Counter[tuple[int, ...]]] = WeakKeyDictionary()


def new_local_group(ranks: Sequence[int], **options: Any) -> dist.ProcessGroup:
    """A group of these global ranks, in which all of them meet here and nobody else.

    torch names groups by a count of them. From 2.15 on it counts these too, so ranks that have no part in one would
    have another name for the next group of the whole world, and all would wait for each other in it. So these are
    named by a count of their own, and torch's stays as it was.
    """
    members = tuple(ranks)
    assert dist.group.WORLD is not None
    made = _made.setdefault(dist.group.WORLD, Counter())
    counted = _world.group_count
    _world.group_count = _APART + made[members]
    made[members] += 1
    try:
        group: dist.ProcessGroup = dist.new_group(list(members), use_local_synchronization=True, **options)
    finally:
        _world.group_count = counted
    return group
