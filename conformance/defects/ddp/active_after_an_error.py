"""The active model is not forgotten when its forward raises."""

from impl.ddp import DistributedDataParallel

from ..planting import edit

CLAUSES = ("DDP-042",)


def plant() -> None:
    edit(
        DistributedDataParallel,
        "_run_ddp_forward",
        "try:\n        return self.module(*inputs, **kwargs)\n    finally:\n        running.ddp = outer",
        "output = self.module(*inputs, **kwargs)\n    running.ddp = outer\n    return output",
    )
