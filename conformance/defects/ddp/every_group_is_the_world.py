"""A given process group is ignored: all ranks of the world take part."""

from impl.ddp import options

from ..planting import edit

CLAUSES = ("DDP-003", "DDP-051")
WORLDS = (3,)


def plant() -> None:
    edit(options, "group_of", "return Team.of(process_group).group", "return Team.of(None).group")
