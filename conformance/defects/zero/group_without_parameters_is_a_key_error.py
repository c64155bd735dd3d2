"""A group dictionary without its parameters fails with a bare KeyError."""

import impl.zero.arguments

from ..planting import edit

CLAUSES = ("ZERO-003",)


def plant() -> None:
    edit(impl.zero.arguments, "checked_group", 'if "params" not in group:', "if not group:")
