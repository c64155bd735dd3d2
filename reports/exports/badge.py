"""A small picture for a README: healthy or not."""

from __future__ import annotations

from html import escape

from ..findings import Urgency, findings
from ..judging import Health, JudgedHistory

_COLOURS = {Health.HEALTHY: "#1c7d4d", Health.REGRESSED: "#c4262e", Health.UNJUDGED: "#8a6200"}
_LETTER = 6.8  # width of most characters, in the units of the picture


def as_badge(judged: JudgedHistory) -> str:
    """An SVG of two fields: "nightly", and the health with the number of alarms."""
    alarms = sum(one.urgency is Urgency.ALARM for one in findings(judged))
    label, figure = "nightly", judged.health.value + (f": {alarms}" if alarms else "")
    left, right = (round(len(text) * _LETTER + 14) for text in (label, figure))
    said = escape(f"{label}: {figure}", quote=True)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + right}" height="20" role="img" aria-label="{said}">'
        f'<title>{said}</title><clipPath id="r"><rect width="{left + right}" height="20" rx="4"/></clipPath>'
        f'<g clip-path="url(#r)"><rect width="{left}" height="20" fill="#444b53"/>'
        f'<rect x="{left}" width="{right}" height="20" fill="{_COLOURS[judged.health]}"/></g>'
        '<g fill="#fff" text-anchor="middle" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11">'
        f'<text x="{left / 2}" y="14">{label}</text><text x="{left + right / 2}" y="14">{escape(figure)}</text>'
        "</g></svg>\n"
    )
