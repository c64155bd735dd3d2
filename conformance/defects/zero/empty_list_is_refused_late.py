"""An empty parameter list is refused as a group of no parameters, in words about groups."""

import impl.zero.arguments

from ..planting import edit

CLAUSES = ("ZERO-003",)


def plant() -> None:
    edit(
        impl.zero.arguments, "checked_groups",
        "if not items:\n        raise ValueError(",
        "if not items:\n        raise IndexError(",
    )
