"""What is no joinable is noticed only where it is used, after other joinables have made their hooks."""

import impl.join.examine

from ..planting import edit

CLAUSES = ("JOIN-020",)


def plant() -> None:
    edit(impl.join.examine, "listed", "        _check_type(place, joinable)\n", "        pass\n")
