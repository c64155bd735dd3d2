"""Outputs pass the sink even where nothing is searched for, and come back as other objects."""

from impl.ddp import DistributedDataParallel

from ..planting import edit

CLAUSES = ("DDP-037",)


def plant() -> None:
    edit(
        DistributedDataParallel,
        "_prepare_backward",
        "if not (self.reducer.use.searched or self.reducer.facts.holds_back):",
        "if not ticket.sync:",
    )
