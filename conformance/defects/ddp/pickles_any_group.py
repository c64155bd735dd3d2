"""A model on a group of its own can be pickled, and comes back on the default one."""

from impl.ddp.renewal import Renewal

from ..planting import swap

CLAUSES = ("DDP-156",)


def plant() -> None:
    swap(Renewal, "_check_default_group", lambda self: None)
