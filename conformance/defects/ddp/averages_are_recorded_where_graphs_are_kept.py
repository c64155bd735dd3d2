"""Where a backward keeps its graph, what happens in the buckets becomes a part of it."""

from impl.ddp import kernels

from ..planting import edit

CLAUSES = ("DDP-050",)


def plant() -> None:
    edit(kernels, "unrecorded", "torch.no_grad() if torch.is_grad_enabled() else _AS_IT_IS", "_AS_IT_IS")
