"""What is wrong with a hook is raised, but not logged."""

from impl.ddp.hooks import validation

from ..planting import edit

CLAUSES = ("COMM-003",)


def plant() -> None:
    edit(validation, "check_comm_hook", "refuse = log_and_throw or _throw", "refuse = _throw")
