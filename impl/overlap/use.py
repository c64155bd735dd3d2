"""Which parameters the ranks use, where DDP searches for unused ones: asked for one bucket or several, read once."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..comm import streams
from ..comm.collectives import all_reduce
from ..comm.pending import Pending, Watch
from ..ddp.wrapper import DistributedDataParallel
from .layout import BucketPart


class BucketUse:
    """How many ranks used each parameter of some buckets."""

    def __init__(self, pending: Pending, columns: dict[int, range]) -> None:
        """``pending``: (parameters,) use; ``columns``: those of each bucket, by its index."""
        self._pending = pending
        self._columns = columns
        self._counts: list[int] | None = None

    def of(self, bucket: int, watch: Watch | None) -> list[int]:
        """The use of one bucket's parameters. The host waits for the first answer only."""
        if self._counts is None:
            self._counts = self._pending.read(watch)
        columns = self._columns[bucket]
        return self._counts[columns.start : columns.stop]


def agree_on_use(ddp: DistributedDataParallel, parts: Sequence[BucketPart]) -> BucketUse | None:
    """Tell all ranks what this one uses of some buckets; None where DDP does not search."""
    used: list[bool] = []
    columns: dict[int, range] = {}
    for part in parts:
        index = part.bucket.spec.index
        mine = ddp.reducer.use_of(index)
        if mine is None:
            return None
        columns[index] = range(len(used), len(used) + len(mine))
        used += mine
    device = ddp.reducer.team.control_device(parts[0].bucket.spec.device)
    marks = streams.tensor_on(device, used, torch.int32)
    which = ", ".join(map(str, columns))
    return BucketUse(all_reduce(ddp.reducer.team, marks, f"overlap: who uses bucket {which}"), columns)
