"""Only the first two joinables' process groups are compared, so a third one on another group is let in."""

import impl.join.examine

from ..planting import edit

CLAUSES = ("JOIN-015",)


def plant() -> None:
    edit(impl.join.examine, "common_group", "enumerate(groups)", "enumerate(groups[:2])")
