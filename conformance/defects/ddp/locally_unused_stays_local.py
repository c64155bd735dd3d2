"""A parameter that this rank did not use keeps its old gradient, though others used it."""

from impl.ddp.traffic import Traffic

from ..planting import swap

CLAUSES = ("DDP-099",)


def plant() -> None:
    def agree(self: Traffic, used: list[bool], device: object) -> frozenset[int]:
        right(self, used, device)
        return frozenset(index for index, mine in enumerate(used) if not mine)

    right = swap(Traffic, "agree_on_use", agree)
