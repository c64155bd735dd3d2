"""The divisor counts the ranks that have joined instead of those that are active."""

from impl.ddp.uneven import UnevenInputs

from ..planting import edit

CLAUSES = ("DDPJ-008",)
WORLDS = (3,)


def plant() -> None:
    edit(
        UnevenInputs, "_divisor",
        "return self._join_session.active",
        "return self.reducer.team.size - self._join_session.active or self.reducer.team.size",
    )
