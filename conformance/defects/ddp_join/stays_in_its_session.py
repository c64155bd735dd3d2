"""After the block a model still asks the context that it has left for the divisor and the source."""

from impl.join.stamps import Stamp

from ..planting import edit

CLAUSES = ("DDPJ-027", "DDPJ-035")


def plant() -> None:
    edit(Stamp, "take_off", "    self._joinable._join_session = None\n", "")
