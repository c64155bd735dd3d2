"""Beside DDP the main hook of a user's own joinable is never run."""

from impl.join.session import Session

from ..planting import edit

CLAUSES = ("JOIN-034",)


def plant() -> None:
    edit(Session, "_follow", "hook.main_hook()", "pass")
