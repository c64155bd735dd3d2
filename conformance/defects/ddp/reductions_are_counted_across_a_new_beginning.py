"""A new group's first forward finds that enough reductions have been made to rebuild the buckets."""

from impl.ddp.shared import SharedFacts

from ..planting import edit

CLAUSES = ("DDP-164",)


def plant() -> None:
    edit(
        SharedFacts, "start_over",
        "self._reductions, self._rebuilt = 0, False",
        "self._reductions, self._rebuilt = getattr(self, '_reductions', 0), False",
    )
