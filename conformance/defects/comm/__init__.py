"""Defects of gradient communication and its hooks (area D of the catalogue)."""
