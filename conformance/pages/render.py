"""Fills the templates: every text is escaped, style and script are inside, and nothing can be loaded from elsewhere."""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from ..clauses import LEVELS, Catalogue
from ..results import Outcome
from . import view
from .record_book import Book
from .rows import STATES, Row

_TEMPLATES = Path(__file__).parent / "templates"


@cache
def _environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(_TEMPLATES), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True, keep_trailing_newline=True,
    )  # fmt: skip
    made.globals.update(hash_of=_hash_of, states=STATES, levels=LEVELS, endings=tuple(Outcome))
    return made


def _hash_of(text: str) -> str:
    """As a content security policy names the one script or style that it allows."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def fill(template: str, **values: Any) -> str:
    """A whole page, with the style and script of all pages inside."""
    style, script = ((_TEMPLATES / name).read_text(encoding="utf-8") for name in ("style.css", "page.js"))
    return _environment().get_template(template).render(style=style, script=script, **values)


def page(book: Book, table: list[Row], catalogue: Catalogue) -> str:
    """The page of one or more records."""
    stand = view.cards(book, table)
    gone = view.stale(book)
    areas = {letter: title for source in book.sources for letter, title in source.header.get("areas", {}).items()}
    return fill(
        "page.html.j2",
        names=list(dict.fromkeys(column.subject for column in book.columns)),
        headline=view.headline(stand, table, gone),
        lead=view.lead(book),
        warnings=view.warnings(book),
        cards=stand,
        news=[(row, cell, each) for row in table for cell in row.cells for each in cell.breaks if not each.listed],
        stale=gone,
        areas={area.letter: area.title for area in catalogue.areas} | areas,
        present=list(dict.fromkeys(row.area for row in table)),
        choices=view.choices(book.columns, view.abouts(book.columns)),
        rows=table,
        asked={row.id: {column for column in book.columns if book.was_asked(row.id, column)} for row in table},
        records=[{"name": _named(source), "facts": view.facts(source)} for source in reversed(book.sources)],
    )


def _named(source: Any) -> str:
    names = ", ".join(source.subjects)
    return f"{names} on {source.header['machine'].get('host', '')}, {view.moment(str(source.header['time']))}"
