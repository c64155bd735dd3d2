"""Outputs that pass the sink are not cloned."""

from impl.ddp import DistributedDataParallel

from ..planting import edit

CLAUSES = ("DDP-112",)


def plant() -> None:
    edit(DistributedDataParallel, "_reset_runtime_state", "self._ddp_sink_clone = True", "self._ddp_sink_clone = False")
