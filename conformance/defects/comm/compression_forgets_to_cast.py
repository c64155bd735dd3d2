"""The compression hooks send the bucket in full precision."""

from impl.ddp.hooks import default_hooks

from ..planting import edit

CLAUSES = ("COMM-018", "COMM-020")


def plant() -> None:
    edit(default_hooks, "_compressed_mean", "buffer.to(dtype)", "buffer.clone()")
