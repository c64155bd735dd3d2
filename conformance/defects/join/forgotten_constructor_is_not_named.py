"""The error about a forgotten base constructor does not say whose it is."""

from impl.join.context import Join

from ..planting import edit

CLAUSES = ("JOIN-050",)
WORLDS = (1,)


def plant() -> None:
    edit(
        Join, "notify_join_context",
        "f\"{type(joinable).__name__} has no join config: its constructor has not run Joinable.__init__(). \"\n"
        "            f\"Call super().__init__() in the constructor of {type(joinable).__name__}.\"",
        "'a joinable has no join config'",
    )
