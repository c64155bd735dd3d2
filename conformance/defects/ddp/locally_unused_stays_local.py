"""A parameter that this rank did not use keeps its old gradient, though others used it."""

from dataclasses import replace

from impl.ddp.shared import Agreement
from impl.ddp.traffic import Traffic

from ..planting import swap

CLAUSES = ("DDP-099",)


def plant() -> None:
    def agree(self: Traffic, used: list[bool], device: object, **learned: bool) -> Agreement:
        agreed = right(self, used, device, **learned)
        return replace(agreed, unused=frozenset(index for index, mine in enumerate(used) if not mine))

    right = swap(Traffic, "agree_on_use", agree)
