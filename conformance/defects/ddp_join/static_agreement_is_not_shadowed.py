"""A joined rank shadows an agreement on use only where unused parameters are searched for."""

from impl.ddp.use import Use

from ..planting import edit

CLAUSES = ("DDPJ-032",)


def plant() -> None:
    edit(Use, "used_by_nobody", "if self.agreement_due:", "if self.searched or (live and self.agreement_due):")
