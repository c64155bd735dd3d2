"""join_hook takes no keywords, so those meant for DDP are an error."""

from impl.zero.optimizer import ZeroRedundancyOptimizer

from ..planting import edit

CLAUSES = ("ZERO-019", "ZERO-021")


def plant() -> None:
    edit(ZeroRedundancyOptimizer, "join_hook", "self, **kwargs: Any", "self")
