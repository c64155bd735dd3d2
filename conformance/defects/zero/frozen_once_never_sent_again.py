"""The transfers are not made anew when a parameter is thawed, so it is stepped by its owner and sent to nobody."""

from impl.zero.sending import Sending

from ..planting import edit

CLAUSES = ("ZERO-013",)


def plant() -> None:
    edit(Sending, "_also_send", "        self._publisher = None\n", "        pass\n")
