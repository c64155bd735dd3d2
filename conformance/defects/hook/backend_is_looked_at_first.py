"""The backend is refused before anybody looks whether the optimizer was built for overlap."""

import torch.distributed as dist

import impl.overlap.hooks

from ..planting import swap

CLAUSES = ("HOOK-005",)


def plant() -> None:
    def check(hook: object, ddp: object, zero: object, reduce_scatter: bool) -> None:
        if dist.get_backend(ddp.process_group) == "gloo":
            raise RuntimeError("overlapping is not supported on gloo")
        right(hook, ddp, zero, reduce_scatter)

    right = swap(impl.overlap.hooks, "_check", check)
