"""A notification uses the group that the joinable had when the context was built."""

from impl.join.plain import PlainPassage

from ..planting import edit

CLAUSES = ("JOIN-052",)
WORLDS = (3,)


def plant() -> None:
    edit(PlainPassage, "notify", "group = joinable.join_process_group", "group = self.team.group")
