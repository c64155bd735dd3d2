"""A joined rank does not learn that live ranks train a parameter that was frozen."""

from impl.zero.sending import Sending

from ..planting import edit

CLAUSES = ("ZERO-020",)


def plant() -> None:
    edit(Sending, "_take_news", "self._also_send(sent)", "pass")
