"""When the context ends all ranks take over rank 0's model."""

from impl.ddp.uneven import UnevenInputs

from ..planting import edit

CLAUSES = ("DDPJ-016", "DDPJ-017", "DDPJ-019")


def plant() -> None:
    edit(UnevenInputs, "_sync_final_model", "source = session.source", "source = GroupRank(0)")
