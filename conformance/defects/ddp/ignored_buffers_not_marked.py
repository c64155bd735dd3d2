"""Only parameters get the mark of being ignored, buffers do not."""

from impl.ddp import params

from ..planting import edit

CLAUSES = ("DDP-150",)


def plant() -> None:
    edit(params, "ignore", "in _all_names(module):", "in module.named_parameters():")
