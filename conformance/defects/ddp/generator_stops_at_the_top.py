"""The generator of parameters does not go into submodules."""

from impl.ddp.compat import CompatibleNames

from ..planting import edit

CLAUSES = ("DDP-170",)


def plant() -> None:
    edit(CompatibleNames, "_get_parameters", "m.modules() if recurse else [m]", "[m]")
