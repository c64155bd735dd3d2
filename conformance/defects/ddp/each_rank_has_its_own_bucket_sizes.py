"""Ranks that were given different bucket sizes each lay out their own buckets."""

from impl.ddp import params

from ..planting import edit

CLAUSES = ("DDP-054",)


def plant() -> None:
    edit(params, "verify_alike", "if any(row != rows[0] for row in rows):", "if False:")
