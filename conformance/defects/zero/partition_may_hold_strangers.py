"""A manual partition may hold parameters that are not the optimizer's."""

from impl.zero.compat import CompatibleNames

from ..planting import edit

CLAUSES = ("ZERO-029",)


def plant() -> None:
    edit(CompatibleNames, "_verify_params_per_rank", "if id(parameter) not in known:", "if parameter is None:")
