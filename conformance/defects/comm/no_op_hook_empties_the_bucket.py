"""The no-op hook returns zeros."""

from impl.ddp.hooks import debugging_hooks

from ..planting import edit

CLAUSES = ("COMM-022",)


def plant() -> None:
    edit(debugging_hooks, "noop_hook", "settled(bucket.buffer())", "settled(bucket.buffer() * 0)")
