"""Process groups that only their members make, while the other ranks of the world go on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch.distributed as dist
from torch.distributed import distributed_c10d

#: by world, how many groups of the same ranks there have been: alike on all of them, since all of them make each
_made: WeakKeyDictionary[dist.ProcessGroup, Counter[tuple[int, ...]]] = WeakKeyDictionary()


def new_local_group(ranks: Sequence[int], **options: Any) -> dist.ProcessGroup:
    """A group of these global ranks, in which all of them meet here and nobody else.

    torch names such a group by how many groups this rank has been in, which may differ between its members, and from
    2.15 on it counts it among those that all ranks make. Ranks with another name for a group wait for each other in
    vain, so these are named by a count of their own, and torch's stay as they were.
    """
    members = tuple(ranks)
    assert dist.group.WORLD is not None
    made = _made.setdefault(dist.group.WORLD, Counter())
    name = f"joinery {made[members]} of {members}"
    made[members] += 1
    named = distributed_c10d._process_group_name
    distributed_c10d._process_group_name = lambda *_, **__: name  # type: ignore[assignment, return-value]
    try:
        group: dist.ProcessGroup = dist.new_group(list(members), use_local_synchronization=True, **options)
    finally:
        distributed_c10d._process_group_name = named
    return group
