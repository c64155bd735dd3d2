"""A manual partition may have fewer lists than there are ranks."""

from impl.zero.compat import CompatibleNames

from ..planting import edit

CLAUSES = ("ZERO-029",)


def plant() -> None:
    edit(
        CompatibleNames, "_verify_params_per_rank",
        "if len(params_per_rank) != self._team.size:",
        "if len(params_per_rank) > self._team.size:",
    )
