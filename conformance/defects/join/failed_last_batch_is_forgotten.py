"""A rank leaves the block as if its last batch had not failed."""

from impl.join.session import Session

from ..planting import edit

CLAUSES = ("JOIN-024",)


def plant() -> None:
    edit(Session, "shadow", "self.refuse_to_go_on()", "pass")
