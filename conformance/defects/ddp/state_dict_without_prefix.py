"""The state dict has the wrapped module's keys."""

from impl.ddp import DistributedDataParallel

from ..planting import override

CLAUSES = ("DDP-161",)


def plant() -> None:
    override(
        DistributedDataParallel, "state_dict", lambda self, *args, **kwargs: self.module.state_dict(*args, **kwargs)
    )
