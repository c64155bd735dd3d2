"""A joined rank shadows an agreement on use only where unused parameters are searched for."""

from impl.ddp.reducer import Reducer

from ..planting import edit

CLAUSES = ("DDPJ-032",)


def plant() -> None:
    edit(Reducer, "shadow_finish", "if self._agreement_due():", "if self.find_unused:")
