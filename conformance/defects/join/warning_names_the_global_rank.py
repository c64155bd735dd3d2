"""The warning of a skew names the global rank."""

from impl.join.passage import Passage

from ..planting import edit

CLAUSES = ("JOIN-017", "JOIN-035")
WORLDS = (3,)


def plant() -> None:
    edit(Passage, "_warn_of_skew", "{self.team.rank}", "{int(self.team.global_rank(self.team.rank))}")
