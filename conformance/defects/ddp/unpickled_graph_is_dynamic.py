"""An unpickled model has forgotten that its graph is static."""

from impl.ddp.renewal import Renewal

from ..planting import edit

CLAUSES = ("DDP-159",)


def plant() -> None:
    edit(Renewal, "__setstate__", "if static_graph:", "if static_graph and delayed:")
