"""Whoever watches a cast model anew goes on with the nodes that its parameters had before."""

from impl.ddp.arrivals import Arrivals

from ..planting import edit

CLAUSES = ("DDP-034",)


def plant() -> None:
    edit(Arrivals, "stop", "    self.nodes.clear()\n", "")
