"""In overlap mode a state can be loaded before the first backward, only to be lost."""

from impl.zero.sharded import Sharded

from ..planting import edit

CLAUSES = ("ZERO-024",)


def plant() -> None:
    edit(
        Sharded, "load_state_dict",
        "    self._check_overlap_initialized()\n",
        "    if self._overlap_info is not None and self._partial_steps is None:\n        return\n",
    )
