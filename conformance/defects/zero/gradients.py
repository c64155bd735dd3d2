"""Defects of area zero: gradient values."""

from __future__ import annotations

from ..planting import defect, edit


@defect("DDPJ-010")
def joined_rank_keeps_the_gradients_it_was_sent() -> None:
    """A joined rank's own gradients are replaced by those with which it stepped its shard."""
    edit(
        "before, strict=True):\n            parameter.grad = gradient",
        "before, strict=True):\n            continue",
    )
