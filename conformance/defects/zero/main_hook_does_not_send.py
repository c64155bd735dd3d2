"""The join hook's main hook steps the shard without sending it."""

from impl.zero.join_hook import _ZeROJoinHook

from ..planting import edit

CLAUSES = ("ZERO-019",)


def plant() -> None:
    edit(_ZeROJoinHook, "main_hook", "self.zero.step()", "self.zero._local_step()")
