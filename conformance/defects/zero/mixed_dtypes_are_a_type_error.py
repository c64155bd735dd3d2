"""Parameters of different dtypes are refused with a TypeError."""

import impl.zero.arguments

from ..planting import edit

CLAUSES = ("ZERO-004",)


def plant() -> None:
    edit(
        impl.zero.arguments, "check_alike",
        "if mine != theirs:\n                raise ValueError(",
        "if mine != theirs:\n                raise TypeError(",
    )
