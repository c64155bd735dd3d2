"""Defects of area ddp_join: throwing on early termination."""

from __future__ import annotations

from ..planting import defect, edit


@defect("JOIN-042")
def exhaustion_is_seen_after_the_reductions() -> None:
    """In throwing mode the roll call is read only when its answer is needed, so the iteration begins all the same."""
    edit("    if self.throw:\n        self._read_message()\n", "")
