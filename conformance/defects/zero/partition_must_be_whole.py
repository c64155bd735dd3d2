"""A manual partition must hold all parameters; a subset is refused."""

from impl.zero.compat import CompatibleNames

from ..planting import edit

CLAUSES = ("ZERO-029",)


def plant() -> None:
    edit(
        CompatibleNames, "_verify_params_per_rank",
        "    for rank, members in enumerate(params_per_rank):\n",
        "    if sum(map(len, params_per_rank)) != len(known):\n"
        '        raise ValueError("params_per_rank must hold every parameter")\n'
        "    for rank, members in enumerate(params_per_rank):\n",
    )
