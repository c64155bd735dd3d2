"""Gradients that come in a backward inside of backward are not noticed."""

from impl.ddp import kernels
from impl.ddp.backwards import Backwards
from impl.ddp.ticket import Ticket

from ..planting import swap

CLAUSES = ("DDP-068", "DDP-111")


def plant() -> None:
    def begin(self: Backwards, ticket: Ticket) -> None:
        self.outermost = kernels.backward_id()
        right_begin(self, ticket)

    def arrived(self: Backwards, index: int) -> None:
        if getattr(self, "outermost", kernels.backward_id()) == kernels.backward_id():
            right_arrived(self, index)

    right_begin = swap(Backwards, "begin", begin)
    right_arrived = swap(Backwards, "arrived", arrived)
