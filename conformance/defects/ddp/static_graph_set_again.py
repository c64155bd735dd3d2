"""Setting a static graph a second time begins anew."""

from impl.ddp.renewal import Renewal

from ..planting import edit

CLAUSES = ("DDP-107",)


def plant() -> None:
    edit(Renewal, "_set_static_graph", "if self.static_graph:", "if self.static_graph is None:")
