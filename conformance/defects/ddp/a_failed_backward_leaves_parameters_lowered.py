"""After a backward that raised, parameters that later iterations leave out stay in low precision."""

from impl.ddp import kernels
from impl.ddp.mixed_precision import MixedPrecisionRun

from ..planting import edit

CLAUSES = ("DDP-135",)


def plant() -> None:
    edit(kernels, "call_when_backward_is_over", "weakref.finalize(reached, failed)", "weakref.finalize(failed, print)")
    edit(MixedPrecisionRun, "before_forward", "self._backward_over()", "self._restore_all()")
