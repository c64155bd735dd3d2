"""The join hook's post hook sends the parameters once more."""

from impl.join.hooks import JoinHook
from impl.zero.join_hook import _ZeROJoinHook

from ..planting import swap

CLAUSES = ("ZERO-019",)


def plant() -> None:
    swap(
        JoinHook, "post_hook",
        lambda self, is_last_joiner: self.zero._sync_params() if isinstance(self, _ZeROJoinHook) else None,
    )
