"""A functional optimizer is replaced by its counterpart without overlap too."""

import impl.zero.arguments

from ..planting import edit

CLAUSES = ("ZERO-005",)


def plant() -> None:
    edit(impl.zero.arguments, "local_constructor", "if not overlap:", "if overlap is None:")
