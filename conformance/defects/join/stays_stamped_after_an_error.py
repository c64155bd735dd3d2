"""A context that an error has ended leaves its joinables stamped."""

from impl.join.context import Join

from ..planting import edit

CLAUSES = ("JOIN-038",)


def plant() -> None:
    edit(
        Join, "__exit__",
        "        self._stamps.take_off()\n",
        "        if error is None:\n            self._stamps.take_off()\n",
    )
