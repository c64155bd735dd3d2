"""After a change of groups there is room for as many sparse rows as the former group had."""

from impl.ddp.traffic import Traffic

from ..planting import edit

CLAUSES = ("DDP-162",)
WORLDS = (4,)


def plant() -> None:
    edit(Traffic, "move_to", "    self._sparse_rooms = {}\n", "")
