"""A synchronised backward forgets what had accumulated before it."""

from impl.ddp.backwards import Backwards
from impl.ddp.ticket import Ticket

from ..planting import swap

CLAUSES = ("DDP-059", "DDP-073")


def plant() -> None:
    def begin(self: Backwards, ticket: Ticket) -> None:
        if ticket.sync and not ticket.spent:
            for parameter in self.parameters:
                parameter.grad = None
        right(self, ticket)

    right = swap(Backwards, "begin", begin)
