"""Integer and boolean buffers are left out."""

from impl.ddp import params

from ..planting import edit

CLAUSES = ("DDP-087",)


def plant() -> None:
    edit(params, "managed_buffers", "if name not in ignored", "if name not in ignored and buffer.is_floating_point()")
