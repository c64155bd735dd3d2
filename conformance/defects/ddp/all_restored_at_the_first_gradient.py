"""All parameters get their full precision back when the first gradient has come, while backward still runs."""

from impl.ddp.mixed_precision import MixedPrecisionRun

from ..planting import edit

CLAUSES = ("DDP-135",)


def plant() -> None:
    edit(MixedPrecisionRun, "_gradient_came", "        self._restore(parameter)", "        self._restore_all()")
