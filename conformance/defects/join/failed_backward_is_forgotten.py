"""A rank goes on behind a backward that failed and was caught inside the block."""

from impl.ddp.uneven import UnevenInputs

from ..planting import edit

CLAUSES = ("JOIN-024",)


def plant() -> None:
    edit(UnevenInputs, "_broken_iteration", "if self.reducer.raised:", "if False:")
