"""Arrivals under ``no_sync`` stay noted in all buckets but the first, and stand for gradients that are missing."""

from impl.ddp.readiness import Readiness

from ..planting import edit

CLAUSES = ("DDP-062",)


def plant() -> None:
    edit(Readiness, "forward_begins", "for bucket in self._queue.buckets:", "for bucket in self._queue.buckets[:1]:")
