"""Of several last joiners the lowest rank is the authority."""

from impl.ddp.uneven import UnevenInputs

from ..planting import edit

CLAUSES = ("DDPJ-017",)


def plant() -> None:
    edit(UnevenInputs, "_sync_final_model", "source = session.source", "source = session.active_ranks[0]")
