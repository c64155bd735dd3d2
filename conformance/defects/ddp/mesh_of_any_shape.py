"""Of a mesh with several dimensions the first one is silently taken."""

from impl.ddp import options

from ..planting import edit

CLAUSES = ("DDP-013",)


def plant() -> None:
    edit(options, "group_of", "device_mesh.ndim != 1", "device_mesh.ndim < 1")
