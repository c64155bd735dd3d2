"""Candidates for authority are global ranks, which are then taken for ranks of the group."""

from impl.ddp.uneven import UnevenInputs

from ..planting import edit

CLAUSES = ("DDPJ-022",)
WORLDS = (3,)


def plant() -> None:
    edit(
        UnevenInputs, "_sync_final_model",
        "self._find_common_rank(int(team.rank), is_last_joiner)",
        "self._find_common_rank(int(team.global_rank(team.rank)), is_last_joiner)",
    )
