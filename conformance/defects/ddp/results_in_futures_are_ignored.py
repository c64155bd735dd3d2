"""What a process group leaves in its Work's future alone is not looked at."""

from impl.comm import collectives

from ..planting import edit

CLAUSES = ("DDP-049",)


def plant() -> None:
    edit(collectives, "all_reduce", "result_in_future=team.is_in_python", "result_in_future=False")
