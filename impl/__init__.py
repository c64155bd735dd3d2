"""Joinery's own data-parallel training for uneven inputs; public names are torch's, letter by letter."""

__version__ = "0.1.0"
