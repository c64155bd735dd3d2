"""The ordinary broadcast of parameters is let through in overlap mode."""

from impl.zero.compat import CompatibleNames

from ..planting import edit

CLAUSES = ("ZERO-028",)


def plant() -> None:
    edit(CompatibleNames, "_broadcast_params_from_rank", "if self._overlap_info is not None:", "if rank < 0:")
