"""Outputs that get no gradient pass zeros on."""

from impl.ddp.ticket import OutputSink

from ..planting import edit

CLAUSES = ("DDP-114",)


def plant() -> None:
    edit(OutputSink, "forward", "ctx.set_materialize_grads(False)", "ctx.set_materialize_grads(True)")
