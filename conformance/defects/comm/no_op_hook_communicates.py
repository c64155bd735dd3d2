"""The no-op hook averages all the same."""

from impl.ddp.hooks import debugging_hooks, default_hooks

from ..planting import swap

CLAUSES = ("COMM-022",)


def plant() -> None:
    swap(debugging_hooks, "noop_hook", default_hooks.allreduce_hook)
