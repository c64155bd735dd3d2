"""A second registration silently replaces the hook."""

from impl.ddp import DistributedDataParallel

from ..planting import edit

CLAUSES = ("COMM-007",)


def plant() -> None:
    edit(
        DistributedDataParallel,
        "_occupy_hook_slot",
        "if self.reducer.traffic.hook is not None:",
        "if self._comm_hooks is None:",
    )
