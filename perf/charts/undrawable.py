"""Why a chart is not drawn."""

from __future__ import annotations


class Undrawable(Exception):
    """The record has not what this chart shows; the text says what is missing."""
