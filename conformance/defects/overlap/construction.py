"""Defects of area overlap: construction."""

from __future__ import annotations

from ..planting import defect, edit


@defect("ZERO-005")
def every_part_counts_as_a_step() -> None:
    """What an optimizer counts outside of its parameters' states goes on with every bucket instead of every
    iteration."""
    edit("    if self._stepped:\n        self._put_back()\n", "")
