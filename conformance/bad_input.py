"""The error for what was asked for and cannot be had; in a file of its own so that quick commands import little."""


class BadInput(ValueError):
    """Something that was asked for cannot be had; the text is one sentence for the user. Exit status 2."""
