"""The two built-in hooks stand for each other."""

from impl.ddp.hooks import builtin

from ..planting import swap

CLAUSES = ("COMM-017", "COMM-018")


def plant() -> None:
    kinds, hooks = list(builtin._HOOKS), list(builtin._HOOKS.values())
    swap(builtin, "_HOOKS", dict(zip(kinds, hooks[::-1], strict=True)))
