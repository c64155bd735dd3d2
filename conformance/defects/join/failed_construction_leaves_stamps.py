"""The process groups are compared only after the joinables have been stamped."""

from impl.join.context import Join

from ..planting import edit

CLAUSES = ("JOIN-018",)


def plant() -> None:
    edit(
        Join, "__init__",
        "    self._team = ",
        "    for place, joinable in enumerate(self._joinables):\n"
        "        joinable._join_config = type(joinable._join_config)(enable, throw_on_early_termination, place == 0)\n"
        "    self._team = ",
    )
