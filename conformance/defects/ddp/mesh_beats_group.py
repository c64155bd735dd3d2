"""With both a group and a mesh the mesh silently wins."""

from impl.ddp import options

from ..planting import edit

CLAUSES = ("DDP-012",)


def plant() -> None:
    edit(
        options,
        "group_of",
        "process_group is not None and device_mesh is not None",
        "process_group is device_mesh is not None",
    )
