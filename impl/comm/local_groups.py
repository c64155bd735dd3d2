"""Process groups: whose they are, and those that only their members make, while the rest of the world goes on."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

import torch.distributed as dist
from torch.distributed import distributed_c10d

#: by world, how many groups of the same ranks there have been: alike on all of them, since all of them make each
_made: WeakKeyDictionary[dist.ProcessGroup, Counter[tuple[int, ...]]] = WeakKeyDictionary()


def global_ranks_of(group: dist.ProcessGroup) -> list[int]:
    """Of its members, in group order; none where torch.distributed was never told of the group."""
    try:
        return dist.get_process_group_ranks(group)
    except (ValueError, KeyError, RuntimeError):
        return []


def new_local_group(ranks: Sequence[int], **options: Any) -> dist.ProcessGroup:
    """A group of these global ranks, in which all of them meet here and nobody else.

    torch names such a group by how many groups this rank has been in, which may differ between its members, and from
    2.15 on it counts it among those that all ranks make. Ranks with another name for a group wait for each other in
    vain, so these are named by a count of their own, and torch's stay as they were.
    """
    members = tuple(ranks)
    assert dist.group.WORLD is not None
    made = _made.setdefault(dist.group.WORLD, Counter())
    with _Naming.changing:
        name = f"joinery {made[members]} of {members}"
        made[members] += 1
    with _Naming.of_this_thread(name):
        group: dist.ProcessGroup = dist.new_group(list(members), use_local_synchronization=True, **options)
    return group


class _Naming:
    """Stands in torch's place while groups are named here. Other threads may make groups of theirs meanwhile."""

    #: by thread
    names: ClassVar[dict[int, str]] = {}
    torchs: ClassVar[Any] = None
    changing: ClassVar[threading.Lock] = threading.Lock()  # not held while a group is made: that waits for others

    @classmethod
    @contextmanager
    def of_this_thread(cls, name: str) -> Iterator[None]:
        """The group that this thread makes has this name."""
        this = threading.get_ident()
        with cls.changing:
            if not cls.names:
                cls.torchs, distributed_c10d._process_group_name = distributed_c10d._process_group_name, cls.named
            cls.names[this] = name
        try:
            yield
        finally:
            with cls.changing:
                del cls.names[this]
                if not cls.names:
                    distributed_c10d._process_group_name = cls.torchs

    @classmethod
    def named(cls, *args: Any, **kwargs: Any) -> Any:
        """What torch calls."""
        name = cls.names.get(threading.get_ident())
        return cls.torchs(*args, **kwargs) if name is None else name
