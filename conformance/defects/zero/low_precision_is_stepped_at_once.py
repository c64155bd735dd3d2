"""Parameters of low precision are stepped by the loops that round elsewhere."""

from impl.zero import at_once

from ..planting import edit

CLAUSES = ("ZERO-008",)


def plant() -> None:
    edit(at_once, "_pays", "parameters[0].dtype not in _SAME_IN or ", "")
