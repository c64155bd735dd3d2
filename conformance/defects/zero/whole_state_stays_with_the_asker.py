"""Whoever asks for the whole state keeps all of it in the place of its own shard's."""

from impl.zero.optimizer import ZeroRedundancyOptimizer

from ..planting import edit

CLAUSES = ("ZERO-009",)


def plant() -> None:
    edit(ZeroRedundancyOptimizer, "state_dict", "self.state = own\n", "pass\n")
