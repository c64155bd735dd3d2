"""A joined rank does not count the reductions that it has shadowed, so later it disagrees about the rebuild."""

from impl.ddp.reducer import Reducer

from ..planting import edit

CLAUSES = ("DDPJ-031", "DDPJ-034")


def plant() -> None:
    edit(Reducer, "shadow_finish", "        self._note_reduction(untouched)\n", "")
