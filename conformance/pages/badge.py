"""A small picture for a README: a label and a figure, coloured by how the figure stands."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape

from .rows import BROKEN, LISTED
from .view import Card

_WIDTHS = {"i": 3.0, "l": 3.0, "j": 3.5, "f": 4.0, "t": 4.2, "r": 4.6, " ": 3.6, "/": 4.4, "m": 10.5, "w": 9.0}
_USUAL = 6.7  # width of most characters, in the units of the picture
_GREEN, _AMBER, _RED, _GREY = "#1c7d4d", "#8a6200", "#c4262e", "#5d646c"


def badge(card: Card) -> str:
    """The badge of one column: "conformance 370 kept, 2 broken"; what it does not offer counts neither way."""
    figure = f"{card.kept} kept, {card.answered - card.kept} broken" if card.answered else "no answer"
    return picture("conformance", figure, _colour(card))


def _colour(card: Card) -> str:
    if card.counts[BROKEN]:
        return _RED
    if not card.answered:
        return _GREY
    return _AMBER if card.counts[LISTED] else _GREEN


def picture(label: str, figure: str, colour: str) -> str:
    """An SVG of two fields side by side."""
    left, right = _width(label), _width(figure)
    said = escape(f"{label}: {figure}", quote=True)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + right}" height="20" role="img" aria-label="{said}">'
        f"<title>{said}</title>"
        f'<clipPath id="r"><rect width="{left + right}" height="20" rx="4"/></clipPath>'
        f'<g clip-path="url(#r)"><rect width="{left}" height="20" fill="#444b53"/>'
        f'<rect x="{left}" width="{right}" height="20" fill="{colour}"/></g>'
        '<g fill="#fff" text-anchor="middle" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11">'
        f'<text x="{left / 2}" y="14">{escape(label)}</text>'
        f'<text x="{left + right / 2}" y="14">{escape(figure)}</text></g></svg>\n'
    )


def _width(text: str) -> int:
    return round(sum(_WIDTHS.get(letter, _USUAL) for letter in text) + 12)


def names(stand: Sequence[Card]) -> list[str]:
    """A file name for each badge: the subject's, and what tells two columns of one subject apart."""
    found: list[str] = []
    for card in stand:
        alone = sum(other.name == card.name for other in stand) == 1
        name = _plain(card.name if alone else f"{card.name} {card.about}") or "subject"
        taken = sum(other == f"badge-{name}.svg" for other in found)
        found.append(f"badge-{name}-{card.index}.svg" if taken else f"badge-{name}.svg")
    return found


def _plain(text: str) -> str:
    """As a file may be called everywhere."""
    return re.sub(r"[^A-Za-z0-9.]+", "-", text).strip("-.")[:80]
