"""A hook that cannot be called is refused with a ValueError."""

from impl.ddp.hooks import validation

from ..planting import edit

CLAUSES = ("COMM-003",)


def plant() -> None:
    edit(
        validation,
        "check_comm_hook",
        'refuse(TypeError, f"Communication hook must',
        'refuse(ValueError, f"Communication hook must',
    )
