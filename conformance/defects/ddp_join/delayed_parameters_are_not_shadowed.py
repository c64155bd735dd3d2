"""The reduction of delayed parameters has no shadow."""

from impl.ddp.uneven import UnevenInputs

from ..planting import swap

CLAUSES = ("DDPJ-039",)


def plant() -> None:
    swap(UnevenInputs, "_shadow_delayed", lambda self: None)
