"""The joinables learn of the context when it is entered, not when it is built."""

from impl.join.context import Join

from ..planting import edit

CLAUSES = ("JOIN-013",)


def plant() -> None:
    edit(Join, "__init__", "    self._stamp()\n", "    self._stamp()\n    self._stamps.take_off()\n")
