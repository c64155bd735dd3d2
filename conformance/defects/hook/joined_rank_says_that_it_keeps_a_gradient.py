"""A joined rank's last own gradient counts as one that live ranks keep for a parameter that nobody uses."""

from impl.overlap.session import OverlapSession

from ..planting import edit

CLAUSES = ("HOOK-042",)


def plant() -> None:
    edit(OverlapSession, "_agree_on_use", "keeps = [live and part", "keeps = [part")
