"""Pickling removes the handles from the object itself."""

from impl.ddp.renewal import Renewal

from ..planting import edit

CLAUSES = ("DDP-155",)


def plant() -> None:
    edit(Renewal, "__getstate__", "    return state", "    self.__dict__ = dict(state)\n    return state")
