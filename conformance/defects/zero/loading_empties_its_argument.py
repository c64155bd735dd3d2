"""Loading replaces other ranks' entries in the given dictionary by None."""

import impl.zero.checkpoint

from ..planting import edit

CLAUSES = ("ZERO-018",)


def plant() -> None:
    edit(
        impl.zero.checkpoint, "own_part",
        "    kept = {",
        "    for key in foreign & set(state_dict['state']):\n        state_dict['state'][key] = None\n    kept = {",
    )
