"""The generator of parameters overlooks a replica's former parameters."""

from impl.ddp.compat import CompatibleNames

from ..planting import edit

CLAUSES = ("DDP-170",)


def plant() -> None:
    edit(CompatibleNames, "_get_parameters", 'getattr(module, "_former_parameters", None)', "None")
