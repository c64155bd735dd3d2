"""Entering the context makes the hooks once more."""

from impl.join.context import Join

from ..planting import edit

CLAUSES = ("JOIN-012",)


def plant() -> None:
    edit(
        Join, "__enter__",
        "    self._stamps.open()\n",
        "    self._stamps.open()\n    self._join_hooks = [joinable.join_hook() for joinable in self._joinables]\n",
    )
