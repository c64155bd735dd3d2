"""Counts as people write them."""

from __future__ import annotations


def counted(count: int, word: str) -> str:
    """``1 clause``, ``2 clauses``."""
    return f"{count} {word}" + "s" * (count != 1)
