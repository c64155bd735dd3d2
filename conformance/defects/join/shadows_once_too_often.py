"""A rank runs its main hooks once more after everybody has joined."""

from impl.join.plain import PlainPassage

from ..planting import edit

CLAUSES = ("JOIN-025", "JOIN-026")


def plant() -> None:
    edit(
        PlainPassage, "shadow",
        "    return shadowed == 0\n",
        "    for hook in self._hooks:\n        hook.main_hook()\n    return shadowed == 0\n",
    )
