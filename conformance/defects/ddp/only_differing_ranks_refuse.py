"""A rank compares itself with rank 0 alone, so that rank 0 is content and goes on."""

from impl.ddp import params

from ..planting import edit

CLAUSES = ("DDP-027",)


def plant() -> None:
    edit(params, "verify_alike", "    if others:", "    if team.rank in others:")
