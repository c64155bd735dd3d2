"""Of two forwards before a backward only the second one's buffer futures are waited for."""

from impl.ddp import DistributedDataParallel

from ..planting import edit

CLAUSES = ("DDP-095",)


def plant() -> None:
    edit(
        DistributedDataParallel,
        "_sync_module_buffers",
        "self.reducer.other_futures.extend(self._buffer_hook.call(self.named_module_buffers))",
        "self.reducer.other_futures = self._buffer_hook.call(self.named_module_buffers)",
    )
