"""Live ranks too wait for the announcement, and get its result."""

from impl.ddp.uneven import UnevenInputs

from ..planting import edit

CLAUSES = ("DDPJ-029",)


def plant() -> None:
    edit(
        UnevenInputs, "_check_global_requires_backward_grad_sync",
        ".item()) if is_joined_rank else None",
        ".item())",
    )
