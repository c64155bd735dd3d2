"""An error of the body that has no text comes out as the error about its text."""

from impl.join import failures

from ..planting import edit

CLAUSES = ("JOIN-023",)


def plant() -> None:
    edit(failures, "_text_of", "except Exception as second:", "except ZeroDivisionError as second:")
