"""A module with uninitialised parameters is refused with a ValueError."""

from impl.ddp import options

from ..planting import edit

CLAUSES = ("DDP-011",)


def plant() -> None:
    edit(
        options,
        "place",
        'raise RuntimeError(\n                "Modules',
        'raise ValueError(\n                "Modules',
    )
