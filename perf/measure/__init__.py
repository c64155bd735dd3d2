"""Measuring: ranks, turns, verification, records."""
