"""A hook that cannot be called is found out in the first backward."""

from impl.ddp.hooks import validation

from ..planting import edit

CLAUSES = ("COMM-003",)


def plant() -> None:
    edit(
        validation,
        "check_comm_hook",
        "    if not callable(hook):",
        "    if not callable(hook):\n        return\n    if hook is None:",
    )
