"""With DDP among the joinables, ranks that shadowed say that they came last."""

from impl.join.session import Session

from ..planting import edit

CLAUSES = ("JOIN-030",)


def plant() -> None:
    edit(Session, "shadow", "return self._phase is Phase.LIVE", "return self._phase is Phase.SHADOWING")
