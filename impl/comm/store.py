"""The key-value store beside the default process group: for words between ranks that must not be collectives."""

from __future__ import annotations

import torch.distributed as dist


def beside_the_group() -> dist.Store | None:
    """The store that the default group was set up with, or None where there is none to be had.

    torch has no public way to it. This is the only place that reaches for the private one; who uses the store must be
    able to do without.
    """
    try:
        store = dist.distributed_c10d._get_default_store()
    except (AttributeError, ValueError, RuntimeError):
        return None
    return dist.PrefixStore("joinery", store)
