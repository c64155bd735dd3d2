"""A mesh is accepted and its group is not used: averages go over the world."""

from impl.ddp import options

from ..planting import edit

CLAUSES = ("DDP-013",)
WORLDS = (3,)


def plant() -> None:
    edit(options, "group_of", "return device_mesh.get_group(mesh_dim=0)", "return Team.of(None).group")
