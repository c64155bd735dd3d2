"""Pickling takes the handles of this process away from the object itself."""

from typing import Any

from impl.ddp.renewal import _OF_THIS_PROCESS, Renewal

from ..planting import swap

CLAUSES = ("DDP-155",)


def plant() -> None:
    def state_of(self: Renewal) -> dict[str, Any]:
        state = right(self)
        self.__dict__.update(dict.fromkeys({"logger", "reducer"} & set(_OF_THIS_PROCESS)))
        return state

    right = swap(Renewal, "__getstate__", state_of)
