"""Of the groups' settings only the learning rate is kept in step."""

import impl.zero.groups

from ..planting import edit

CLAUSES = ("ZERO-011",)


def plant() -> None:
    edit(impl.zero.groups, "copy_settings", 'if key != "params":', 'if key == "lr" or key not in target:')
