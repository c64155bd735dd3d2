"""A bucket is stepped without waiting for its future: the wrapped hook has returned, so it must be averaged."""

from impl.overlap.reduction import WrappedReduction

from ..planting import edit

CLAUSES = ("HOOK-018", "HOOK-049")


def plant() -> None:
    edit(
        WrappedReduction, "result",
        "value = wait_for(self.future, self._device, watch)",
        "value = self.future.value() if self.future.done() else part.bucket.flat",
    )
