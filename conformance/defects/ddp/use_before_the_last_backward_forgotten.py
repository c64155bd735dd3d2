"""A parameter that was used only inside no_sync counts as unused in the closing reduction."""

from impl.ddp.use import Use

from ..planting import swap

CLAUSES = ("DDP-077",)


def plant() -> None:
    swap(Use, "here", lambda self, index: index not in self.unused)
    swap(Use, "left_out", lambda self: self.unused)
