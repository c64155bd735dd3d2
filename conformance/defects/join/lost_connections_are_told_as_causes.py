"""A rank that has lost a connection is told to the others as the one that failed."""

from impl.join.failures import FailureNotes

from ..planting import swap

CLAUSES = ("JOIN-057",)


def plant() -> None:
    def ask(self: FailureNotes, error: BaseException) -> None:
        self.leave(error)

    swap(FailureNotes, "ask", ask)
