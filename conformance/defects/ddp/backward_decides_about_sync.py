"""What counts is where the backward runs, not where the forward ran."""

from impl.ddp.backwards import Backwards
from impl.ddp.ticket import Ticket

from ..planting import swap

CLAUSES = ("DDP-074",)


def plant() -> None:
    def begin(self: Backwards, ticket: Ticket) -> None:
        model = self.traffic.around.announce.__self__
        ticket.sync = model.require_backward_grad_sync
        right(self, ticket)

    right = swap(Backwards, "begin", begin)
