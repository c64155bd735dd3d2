"""Outputs in a dataclass are replaced by ordinary assignment, which a frozen one refuses."""

from impl.ddp import containers

from ..planting import edit

CLAUSES = ("DDP-102",)


def plant() -> None:
    edit(containers, "_object_like", "object.__setattr__(twin, name, attribute)", "setattr(twin, name, attribute)")
