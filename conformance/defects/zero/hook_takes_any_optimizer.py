"""The join hook can be built around any optimizer, and fails later."""

from impl.zero.join_hook import _ZeROJoinHook

from ..planting import edit

CLAUSES = ("ZERO-023",)


def plant() -> None:
    edit(
        _ZeROJoinHook, "__init__",
        "if not isinstance(zero, ZeroRedundancyOptimizer):",
        "if not hasattr(zero, 'step'):",
    )
