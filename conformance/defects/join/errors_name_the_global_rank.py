"""The error of a rank that has exhausted its inputs names its global rank."""

from impl.join.passage import Passage

from ..planting import edit

CLAUSES = ("JOIN-017",)
WORLDS = (3,)


def plant() -> None:
    edit(Passage, "_raise_exhausted_here", "{self.team.rank}", "{int(self.team.global_rank(self.team.rank))}")
