"""A joined rank does not count the reductions that it has shadowed, so later it disagrees about the rebuild."""

from impl.ddp.reduction import Reduction

from ..planting import edit

CLAUSES = ("DDPJ-031", "DDPJ-034")


def plant() -> None:
    edit(Reduction, "shadow_finish", "self._note_reduction(self._results(live=False))", "self._results(live=False)")
