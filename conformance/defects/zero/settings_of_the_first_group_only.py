"""Only the first group's settings are kept in step."""

import impl.zero.groups

from ..planting import edit

CLAUSES = ("ZERO-011",)


def plant() -> None:
    edit(
        impl.zero.groups, "copy_settings",
        "zip(sources, targets, strict=True)",
        "list(zip(sources, targets, strict=True))[:1]",
    )
