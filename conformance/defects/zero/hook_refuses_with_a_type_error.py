"""The join hook refuses a foreign object with a TypeError."""

from impl.zero.join_hook import _ZeROJoinHook

from ..planting import edit

CLAUSES = ("ZERO-023",)


def plant() -> None:
    edit(_ZeROJoinHook, "__init__", "raise AssertionError(", "raise TypeError(")
