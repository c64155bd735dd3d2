"""With batched copies the average is divided once more."""

from impl.ddp import DistributedDataParallel

from ..planting import swap

CLAUSES = ("DDP-120",)


def plant() -> None:
    def deliver(self: DistributedDataParallel) -> None:
        if self.batched_grad_copy:
            for parameter in self.reducer.parameters:
                if parameter.grad is not None:
                    parameter.grad /= self.reducer.team.size
        right(self)

    right = swap(DistributedDataParallel, "_on_delivered", deliver)
