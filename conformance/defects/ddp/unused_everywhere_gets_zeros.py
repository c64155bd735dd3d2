"""A parameter that no rank used gets an average of nothing: zeros."""

from dataclasses import replace

from impl.ddp.shared import Agreement
from impl.ddp.traffic import Traffic

from ..planting import swap

CLAUSES = ("DDP-100", "DDP-105", "DDP-119")


def plant() -> None:
    def agree(self: Traffic, used: list[bool], device: object, **learned: bool) -> Agreement:
        agreed = right(self, used, device, **learned)
        return replace(agreed, unused=frozenset())

    right = swap(Traffic, "agree_on_use", agree)
