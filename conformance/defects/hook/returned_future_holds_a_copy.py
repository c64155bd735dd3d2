"""The contiguous hook returns a future of a copy, made before the wrapped hook's future is done."""

from impl.overlap.session import OverlapSession

from ..planting import edit

CLAUSES = ("HOOK-033",)


def plant() -> None:
    edit(
        OverlapSession, "on_bucket",
        "return flight.reduction.future",
        "return flight.reduction.future.then(lambda done: done.value().clone())",
    )
