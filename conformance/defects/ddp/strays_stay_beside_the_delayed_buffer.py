"""A delayed gradient that came in other memory is averaged in the buffer, but stays where and what it was."""

from impl.ddp.delayed import DelayedReduction

from ..planting import edit

CLAUSES = ("DDP-122",)


def plant() -> None:
    edit(
        DelayedReduction,
        "_gather_strays",
        "view.copy_(parameter.grad)\n            parameter.grad = view",
        "view.copy_(parameter.grad)",
    )
