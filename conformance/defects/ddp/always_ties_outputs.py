"""Outputs pass the sink even where nothing is searched for, and come back as other objects."""

from impl.ddp import DistributedDataParallel

from ..planting import edit

CLAUSES = ("DDP-037",)


def plant() -> None:
    edit(
        DistributedDataParallel,
        "_prepare_backward",
        "if not (self.reducer.find_unused or self.reducer.learning):",
        "if not ticket.sync:",
    )
