"""A factory notes the sharding in the optimizer before it refuses the backend."""

import torch.distributed as dist

import impl.overlap.hooks

from ..planting import edit

CLAUSES = ("HOOK-005",)


def plant() -> None:
    assert dist.is_available()
    edit(
        impl.overlap.hooks, "_make",
        "    info.total_size = 0 if shard_buckets else None\n",
        "    info.total_size = 0 if shard_buckets else None\n"
        '    if torch.distributed.get_backend(ddp.process_group) == "gloo":\n'
        '        raise RuntimeError("overlapping is not supported on gloo")\n',
    )
