"""Each rank keeps the loaded states of all parameters, those of others too."""

import impl.zero.checkpoint

from ..planting import edit

CLAUSES = ("ZERO-017",)


def plant() -> None:
    edit(impl.zero.checkpoint, "own_part", "if index not in owned}", "if index < 0}")
