"""A joined rank shadows an agreement on use only where unused parameters are searched for."""

from impl.ddp.reduction import Reduction

from ..planting import edit

CLAUSES = ("DDPJ-032",)


def plant() -> None:
    edit(
        Reduction, "_results",
        "if self.facts.agreement_due else",
        "if self.facts.searched or (live and self.facts.agreement_due) else",
    )
