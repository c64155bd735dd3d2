"""Each rank loads the first states of the dictionary, as many as it owns parameters."""

import impl.zero.checkpoint

from ..planting import edit

CLAUSES = ("ZERO-017",)


def plant() -> None:
    edit(impl.zero.checkpoint, "own_part", "if index not in owned}", "if index >= len(owned)}")
