"""What a static graph never uses is settled by the first reduction, whoever was absent from it."""

from impl.ddp.shared import SharedFacts

from ..planting import edit

CLAUSES = ("DDPJ-032",)


def plant() -> None:
    edit(SharedFacts, "reduction_ended", "agreement.learned_by_all, agreement.unused", "True, agreement.unused")
