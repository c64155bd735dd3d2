"""The flat tensors are made, but the values are not moved into them."""

import impl.zero.publish

from ..planting import edit

CLAUSES = ("ZERO-012",)


def plant() -> None:
    edit(impl.zero.publish, "_flattened", "        copy_all(views, members)\n", "        flat.zero_()\n")
