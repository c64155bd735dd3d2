"""The ids of sparse rows are not passed on."""

from impl.ddp.compat import CompatibleNames

from ..planting import swap

CLAUSES = ("DDP-169",)


def plant() -> None:
    swap(CompatibleNames, "_set_sparse_metadata", lambda self, global_unique_ids: None)
