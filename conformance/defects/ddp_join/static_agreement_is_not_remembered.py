"""A joined rank forgets the one agreement of a static graph on what nobody uses, and waits for another."""

from impl.ddp.use import Use

from ..planting import edit

CLAUSES = ("DDPJ-032",)


def plant() -> None:
    edit(
        Use, "used_by_nobody",
        "if not self.static:",
        "if not (self.static and live):",
    )
