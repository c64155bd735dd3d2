"""A buffer hook runs before the forward and after it, whatever its location."""

from impl.ddp import DistributedDataParallel

from ..planting import edit

CLAUSES = ("DDP-094",)


def plant() -> None:
    edit(
        DistributedDataParallel,
        "_check_sync_bufs_post_fwd",
        "hook is not None and hook.buffer_comm_hook_location is after",
        "hook is not None and after",
    )
    edit(
        DistributedDataParallel,
        "_check_sync_bufs_pre_fwd",
        "(hook is None or hook.buffer_comm_hook_location is before)",
        "(hook is None or before)",
    )
