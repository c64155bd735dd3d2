"""Errors about missing gradients give the parameters' indices only."""

from impl.ddp import complaints

from ..planting import edit

CLAUSES = ("DDP-146",)


def plant() -> None:
    edit(complaints, "tell_unfinished", "', '.join(specs[index].name for index in shown)", "len(shown)")
