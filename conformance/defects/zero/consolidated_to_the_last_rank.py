"""The state is consolidated to the last rank unless told otherwise."""

from impl.zero.optimizer import ZeroRedundancyOptimizer

from ..planting import edit

CLAUSES = ("ZERO-015", "ZERO-016")


def plant() -> None:
    edit(
        ZeroRedundancyOptimizer, "consolidate_state_dict",
        "to: int = 0) -> None:",
        "to: int | None = None) -> None:\n    to = self._team.size - 1 if to is None else to",
    )
