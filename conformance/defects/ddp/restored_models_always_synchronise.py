"""A restored model synchronises its next backward whatever was stored."""

from impl.ddp.renewal import Renewal

from ..planting import edit

CLAUSES = ("DDP-159",)


def plant() -> None:
    edit(
        Renewal,
        "__setstate__",
        "self._reset_runtime_state()",
        "self.require_backward_grad_sync = True\n    self._reset_runtime_state()",
    )
