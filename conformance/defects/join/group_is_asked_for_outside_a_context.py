"""A notification outside a context looks up the joinable's group before it finds that there is nothing to do."""

from impl.join.context import Join

from ..planting import edit

CLAUSES = ("JOIN-049",)
WORLDS = (1,)


def plant() -> None:
    edit(
        Join, "notify_join_context",
        "    if not config.enable:",
        "    team = Team.of(joinable.join_process_group)\n    if not config.enable:",
    )
