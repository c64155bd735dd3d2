"""A failure in one context is taken for one in the contexts that follow."""

from impl.join import failures

from ..planting import edit

CLAUSES = ("DDPJ-034",)


def plant() -> None:
    edit(failures, "next_passage", "_passages[name] = _passages.get(name, 0) + 1", "_passages[name] = 1")
