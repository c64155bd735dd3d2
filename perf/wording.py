"""Counts as people write them."""

from __future__ import annotations


def counted(count: int, word: str) -> str:
    """``1 clause``, ``2 clauses``."""
    return f"{count} {word}" + "s" * (count != 1)


def more(count: int, word: str) -> str:
    """The end of a caption that says how much is not shown; empty if nothing is left out."""
    return f" {counted(count, f'more {word}')} {'is' if count == 1 else 'are'} in the record." if count else ""
