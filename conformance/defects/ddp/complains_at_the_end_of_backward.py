"""A backward that leaves gradients out raises at its end, though a further one may complete it."""

from impl.ddp.backwards import Backwards

from ..planting import edit

CLAUSES = ("DDP-062",)


def plant() -> None:
    edit(
        Backwards,
        "_complete",
        "        return  # another backward",
        "        self._armed = False\n        self.check_finished()  # another backward",
    )
