"""A joinable that is listed twice is let in, and is no longer the first when its second stamp is on."""

import impl.join.examine

from ..planting import edit

CLAUSES = ("JOIN-019",)


def plant() -> None:
    edit(impl.join.examine, "listed", "    _check_no_duplicate(found)\n", "")
