"""The backend Gloo is refused, but the error does not say so and is of another class."""

import torch.distributed as dist

import impl.overlap.hooks

from ..planting import swap

CLAUSES = ("HOOK-004", "HOOK-041")


def plant() -> None:
    def check(hook: object, ddp: object, zero: object, reduce_scatter: bool) -> None:
        right(hook, ddp, zero, reduce_scatter)
        if dist.get_backend(ddp.process_group) == "gloo":
            raise ValueError("this backend cannot overlap")

    right = swap(impl.overlap.hooks, "_check", check)
