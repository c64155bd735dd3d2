"""A failure in one context is taken for one in the contexts that follow."""

from impl.join.standing import Standing

from ..planting import edit

CLAUSES = ("DDPJ-034",)


def plant() -> None:
    edit(Standing, "next_passage", "self._passages += 1", "self._passages = 1")
