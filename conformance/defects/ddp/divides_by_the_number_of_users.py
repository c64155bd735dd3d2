"""A gradient is averaged over the ranks that used the parameter, not over all of them."""

from impl.ddp import DistributedDataParallel

from ..planting import swap

CLAUSES = ("DDP-099",)


def plant() -> None:
    def deliver(self: DistributedDataParallel) -> None:
        counts = self.reducer.traffic.use_counts.tolist()
        for parameter, count in zip(self.reducer.parameters, counts, strict=False):
            if count and parameter.grad is not None:
                parameter.grad *= self.reducer.team.size / count
        right(self)

    right = swap(DistributedDataParallel, "_on_delivered", deliver)
