"""Of two forwards before one backward, only the last one's backward is synchronised."""

from impl.ddp.backwards import Backwards
from impl.ddp.ticket import Ticket

from ..planting import swap

CLAUSES = ("DDP-060",)


def plant() -> None:
    def begin(self: Backwards, ticket: Ticket) -> None:
        if ticket is self.forwards.latest:
            right(self, ticket)
        else:
            self.remove_hooks()

    right = swap(Backwards, "begin", begin)
