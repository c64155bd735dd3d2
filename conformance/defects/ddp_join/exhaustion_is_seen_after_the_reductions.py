"""In throwing mode the roll call is read only when its answer is needed, so the iteration begins all the same."""

from impl.join.session import Session

from ..planting import edit

CLAUSES = ("JOIN-042",)


def plant() -> None:
    edit(Session, "_call_roll", "    if self.throw:\n        self._settle()\n", "")
