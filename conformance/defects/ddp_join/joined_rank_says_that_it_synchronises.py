"""A joined rank's own setting counts in the announcement whether anybody synchronises."""

from impl.ddp.uneven import UnevenInputs

from ..planting import edit

CLAUSES = ("DDPJ-029",)


def plant() -> None:
    edit(
        UnevenInputs, "_check_global_requires_backward_grad_sync",
        "wanted = not is_joined_rank and self",
        "wanted = is_joined_rank or self",
    )
