"""A rank that was alone with its inputs in one context reduces alone, too, what it shadows in the next."""

from impl.ddp.uneven import UnevenInputs

from ..planting import edit

CLAUSES = ("DDPJ-034",)


def plant() -> None:
    edit(UnevenInputs, "_alone", " and not session.shadowing", "")
