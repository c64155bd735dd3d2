"""Buffers take their dtype at the first forward, not at construction."""

from typing import Any

from impl.ddp.mixed_precision import MixedPrecisionRun

from ..planting import swap

CLAUSES = ("DDP-139",)


def plant() -> None:
    cast = swap(MixedPrecisionRun, "_cast_buffers", lambda self, ddp: setattr(self, "model", ddp))

    def before(self: MixedPrecisionRun, inputs: Any, kwargs: Any) -> Any:
        cast(self, self.model)
        return right(self, inputs, kwargs)

    right = swap(MixedPrecisionRun, "before_forward", before)
