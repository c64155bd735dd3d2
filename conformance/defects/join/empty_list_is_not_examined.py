"""An empty list of joinables is not examined, so it fails with an IndexError inside."""

import impl.join.examine

from ..planting import edit

CLAUSES = ("JOIN-011",)


def plant() -> None:
    edit(impl.join.examine, "listed", "if not found:", "if False:")
