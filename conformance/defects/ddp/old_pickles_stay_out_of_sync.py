"""A pickle without the two flags comes back with synchronisation off."""

from impl.ddp.renewal import Renewal

from ..planting import edit

CLAUSES = ("DDP-159",)


def plant() -> None:
    edit(
        Renewal,
        "__setstate__",
        'setdefault("require_backward_grad_sync", True)',
        'setdefault("require_backward_grad_sync", False)',
    )
