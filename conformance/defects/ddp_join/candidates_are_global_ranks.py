"""Candidates for authority are global ranks, which are then taken for ranks of the group."""

from impl.ddp.uneven import UnevenInputs

from ..planting import edit

CLAUSES = ("DDPJ-022",)
WORLDS = (3,)


def plant() -> None:
    edit(UnevenInputs, "_sync_final_model", "source = session.source", "source = team.global_rank(session.source)")
