"""Throwing on early termination works in a disabled context too."""

from impl.join.context import Join

from ..planting import edit

CLAUSES = ("JOIN-047",)


def plant() -> None:
    edit(
        Join, "notify_join_context",
        "    if not config.enable:",
        "    if not config.enable and not config.throw_on_early_termination:",
    )
