"""Defects of area overlap: construction."""

from __future__ import annotations

from ..planting import defect, edit


@defect("ZERO-005")
def every_part_counts_as_a_step() -> None:
    """Every optimizer is stepped bucket by bucket: what one counts outside of its parameters' states goes on with each
    instead of every iteration."""
    edit('return type(optim).__module__.startswith(f"{torch.optim.__name__}.")', "return True", within="is_of_torch")
