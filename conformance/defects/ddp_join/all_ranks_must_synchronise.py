"""Joined ranks reduce only if every rank announces that it synchronises."""

from impl.ddp.uneven import UnevenInputs

from ..planting import edit

CLAUSES = ("DDPJ-029",)


def plant() -> None:
    edit(
        UnevenInputs, "_check_global_requires_backward_grad_sync",
        '"any backward to synchronise")',
        '"any backward to synchronise", dist.ReduceOp.MIN)',
    )
