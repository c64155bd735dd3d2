"""Two process groups of the same ranks are taken for one."""

import impl.join.examine

from ..planting import edit

CLAUSES = ("JOIN-015",)


def plant() -> None:
    edit(
        impl.join.examine, "common_group",
        "if _resolved(group) is not _resolved(groups[0]):",
        "if dist.get_process_group_ranks(group) != dist.get_process_group_ranks(groups[0]):",
    )
