"""A joined rank forgets the one agreement of a static graph on what nobody uses, and waits for another."""

from impl.ddp.reduction import Reduction

from ..planting import edit

CLAUSES = ("DDPJ-032",)


def plant() -> None:
    edit(
        Reduction, "shadow_finish",
        "self._note_reduction(self._results(live=False))",
        "self._results(live=False), self._note_reduction(None)",
    )
