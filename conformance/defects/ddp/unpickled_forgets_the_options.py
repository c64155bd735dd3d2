"""An unpickled model no longer looks for unused parameters."""

from impl.ddp.renewal import Renewal

from ..planting import edit

CLAUSES = ("DDP-158",)


def plant() -> None:
    edit(
        Renewal,
        "__setstate__",
        "    self._build_reducer()",
        "    self.find_unused_parameters = False\n    self._build_reducer()",
    )
