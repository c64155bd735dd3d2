"""The key-value store beside the default process group: for words between ranks that must not be collectives."""

from __future__ import annotations

import torch.distributed as dist


def beside(group: dist.ProcessGroup) -> dist.Store | None:
    """A store that all ranks of the group share, or None where there is none to be had.

    It is the one that the default group was set up with. Whether the ranks of a group that torch.distributed was never
    told of share that, nobody knows.

    torch has no public way to it. This is the only place that reaches for the private one; who uses the store must be
    able to do without.
    """
    try:
        dist.get_global_rank(group, 0)  # ValueError for a stranger
        store = dist.distributed_c10d._get_default_store()
    except (AttributeError, ValueError, RuntimeError):
        return None
    return dist.PrefixStore("joinery", store)
