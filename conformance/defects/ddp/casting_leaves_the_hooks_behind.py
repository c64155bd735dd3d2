"""Moving or casting the model does not have its gradients watched anew."""

from impl.ddp import DistributedDataParallel

from ..planting import edit

CLAUSES = ("DDP-034",)


def plant() -> None:
    edit(DistributedDataParallel, "_apply", "self.reducer.watch_anew()", "pass")
