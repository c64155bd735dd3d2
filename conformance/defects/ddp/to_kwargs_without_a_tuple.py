"""to_kwargs returns the arguments bare instead of one tuple for each device."""

from impl.ddp.compat import CompatibleNames

from ..planting import edit

CLAUSES = ("DDP-045",)


def plant() -> None:
    edit(
        CompatibleNames,
        "to_kwargs",
        "(self._moved(inputs, device),), (self._moved(kwargs, device),)",
        "self._moved(inputs, device), self._moved(kwargs, device)",
    )
