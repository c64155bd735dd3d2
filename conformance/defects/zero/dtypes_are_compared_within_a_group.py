"""Parameters are compared with those of their own group only, so two groups may differ in dtype."""

import impl.zero.arguments

from ..planting import edit

CLAUSES = ("ZERO-004",)


def plant() -> None:
    edit(
        impl.zero.arguments, "checked_groups",
        "    check_alike(everything)\n",
        '    for group in groups:\n        check_alike(group["params"])\n',
    )
