"""The consolidated state is not sorted: it stands in the order in which the shards have arrived."""

import impl.zero.checkpoint

from ..planting import edit

CLAUSES = ("ZERO-016",)


def plant() -> None:
    edit(impl.zero.checkpoint, "_gather", "return dict(sorted(gathered.items()))", "return gathered")
