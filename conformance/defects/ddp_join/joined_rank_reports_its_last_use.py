"""A joined rank reports the parameters that it used in its own last iteration."""

from impl.ddp.use import Use

from ..planting import edit

CLAUSES = ("DDPJ-030",)


def plant() -> None:
    edit(
        Use, "told",
        "tells and self.here(index)",
        "self.here(index)",
    )
