"""A named tuple comes back as a plain tuple where the graph is searched."""

from impl.ddp import containers

from ..planting import edit

CLAUSES = ("DDP-036", "DDP-102")


def plant() -> None:
    edit(
        containers,
        "map_tensors",
        "return type(value)(*(map_tensors(change, item) for item in value))",
        "return tuple(map_tensors(change, item) for item in value)",
    )
