"""Buffers are broadcast after the wrapped forward, which has then read the old ones."""

from impl.ddp import DistributedDataParallel

from ..planting import swap

CLAUSES = ("DDP-080",)


def plant() -> None:
    before = swap(
        DistributedDataParallel, "_check_sync_bufs_pre_fwd", lambda self: bool(self._buffer_hook) and before(self)
    )
    after = swap(
        DistributedDataParallel,
        "_check_sync_bufs_post_fwd",
        lambda self: self.will_sync_module_buffers() if self._buffer_hook is None else after(self),
    )
