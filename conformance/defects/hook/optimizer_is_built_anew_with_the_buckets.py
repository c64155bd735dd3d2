"""When the buckets are rebuilt the local optimizer is built again, and its state is lost."""

from impl.overlap.session import OverlapSession

from ..planting import edit

CLAUSES = ("HOOK-017", "HOOK-018")


def plant() -> None:
    edit(
        OverlapSession, "_settle_owners",
        "    if plan.owners != self._zero._plan.owners:\n        self._move(self._zero._team, plan)\n",
        "    self._steps = self._zero._init_zero_for_overlap(plan)\n",
    )
