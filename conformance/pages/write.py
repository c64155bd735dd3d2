"""Writes everything that is made from records into one folder: the page, the summary, a badge for each column."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from ..clauses import load
from . import badge, view
from .markdown import summary
from .record_book import Book, open_book
from .render import page
from .rows import rows

PAGE, SUMMARY = "index.html", "summary.md"


def write(records: Sequence[Path], out: Path) -> tuple[list[Path], tuple[str, ...]]:
    """Make the pages of these records in ``out``; what was written, and a sentence for each record left out."""
    book = open_book(records)
    return write_book(book, out), book.damaged


def write_book(book: Book, out: Path) -> list[Path]:
    """Make the pages of records that were read."""
    catalogue = load()
    table = rows(book, catalogue)
    stand = view.cards(book, table)
    made = {PAGE: page(book, table, catalogue), SUMMARY: summary(book, table)}
    made |= {name: badge.badge(card) for name, card in zip(badge.names(stand), stand, strict=True)}
    out.mkdir(parents=True, exist_ok=True)
    for name, content in made.items():
        put(out / name, content)
    return [out / name for name in made]


def put(path: Path, content: str) -> None:
    """Write a file that is either as it was or complete."""
    beside = path.with_name(path.name + ".part")
    beside.write_text(content, encoding="utf-8")
    os.replace(beside, path)
