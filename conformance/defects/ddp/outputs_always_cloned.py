"""Outputs are cloned although that was switched off."""

from impl.ddp.ticket import OutputSink

from ..planting import edit

CLAUSES = ("DDP-113",)


def plant() -> None:
    edit(OutputSink, "forward", "if clone else outputs", "if outputs else outputs")
