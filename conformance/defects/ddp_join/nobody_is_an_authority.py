"""Where no rank qualifies as authority, -1 is returned as if it were a rank."""

from impl.ddp.uneven import UnevenInputs

from ..planting import edit

CLAUSES = ("DDPJ-021",)


def plant() -> None:
    edit(UnevenInputs, "_find_common_rank", "if found == -1:", "if found < -1:")
