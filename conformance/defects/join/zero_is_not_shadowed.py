"""In a context of DDP and ZeRO only DDP is shadowed: joined ranks do not publish their shard."""

from impl.join.session import Session

from ..planting import edit

CLAUSES = ("JOIN-033", "ZERO-021")


def plant() -> None:
    edit(
        Session, "_follow",
        "if isinstance(hook, FollowingHook):",
        "if act.joinable > 0:\n        return\n    if isinstance(hook, FollowingHook):",
    )
