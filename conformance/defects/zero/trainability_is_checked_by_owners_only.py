"""In overlap mode only ranks that own something notice a change of requires_grad."""

from impl.zero.sending import Sending

from ..planting import edit

CLAUSES = ("ZERO-027",)
WORLDS = (3,)


def plant() -> None:
    edit(
        Sending, "_check_trainability_unchanged",
        "if self._partial_steps is None:",
        "if self._partial_steps is None or not self._plan.owned_by(self._team.rank):",
    )
