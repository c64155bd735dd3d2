"""The divisor is the number of ranks that were active in the iteration before."""

from impl.join.session import Session

from ..planting import swap

CLAUSES = ("DDPJ-008", "DDPJ-011")


def plant() -> None:
    swap(Session, "active", lambda self: self._last.active)
