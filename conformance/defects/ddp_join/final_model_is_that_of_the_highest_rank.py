"""When the context ends all ranks take over the highest rank's model, whenever it joined."""

from impl.ddp.uneven import UnevenInputs

from ..planting import edit

CLAUSES = ("DDPJ-016", "DDPJ-017")


def plant() -> None:
    edit(UnevenInputs, "_sync_final_model", "source = session.source", "source = GroupRank(team.size - 1)")
