"""Defects of area overlap: sequential variant; interleaved variant."""

from __future__ import annotations

import torch

from impl.overlap.session import OverlapSession

from ..planting import defect, edit, swap


@defect("HOOK-031")
def all_buckets_are_waited_for_first() -> None:
    """No bucket is stepped until the reductions of all of them are over."""
    edit(
        "    for flight in due_flights:\n        self._step_and_send(",
        "    for flight in due_flights:\n        self._reduce(ddp, flight, watch)\n"
        "    for flight in due_flights:\n        self._step_and_send(",
    )


@defect("HOOK-032")
def bucket_out_of_order_is_a_value_error() -> None:
    """A bucket that is not due is refused with a ValueError."""
    edit("raise AssertionError(", "raise ValueError(", within="on_bucket")


@defect("HOOK-032")
def bucket_out_of_order_is_let_in() -> None:
    """Nobody looks whether buckets come in order."""
    edit("elif index != len(self._flights):", "elif index < 0:")


@defect("HOOK-030", "HOOK-048")
def sequential_steps_before_the_last_bucket() -> None:
    """The sequential hook begins to step in the hook of the last bucket but one."""
    edit("due = due if last else 0", "due = due if last else due - 1 if due >= len(self._layout.parts) - 1 else 0")


@defect("HOOK-036", "HOOK-018")
def end_comes_one_bucket_early() -> None:
    """An iteration is taken to be over when all buckets but one have come."""
    edit(
        "self._advance(ddp, bucket.is_last())",
        "self._advance(ddp, len(self._flights) == max(len(self._layout.parts) - 1, 1))",
    )


@defect("HOOK-034", "HOOK-048")
def interleaved_is_contiguous() -> None:
    """The interleaved factory makes the sequential hook."""
    edit("Schedule.INTERLEAVED", "Schedule.SEQUENTIAL")


@defect("HOOK-033", "HOOK-035")
def last_future_holds_parameters() -> None:
    """The future of the last bucket holds the parameters that were stepped with it."""
    def on_bucket(self: OverlapSession, state: object, bucket: object) -> object:
        future = right(self, state, bucket)
        if not bucket.is_last():
            return future
        stepped = torch.cat([parameter.detach().flatten() for parameter in bucket.parameters()])
        return future.then(lambda done: stepped)

    right = swap(OverlapSession, "on_bucket", on_bucket)


@defect("HOOK-033")
def returned_future_holds_a_copy() -> None:
    """The sequential hook returns a future of a copy, made before the wrapped hook's future is done."""
    edit("return flight.reduction.future", "return flight.reduction.future.then(lambda done: done.value().clone())")


@defect("HOOK-033", "HOOK-035")
def returned_future_holds_local_gradients() -> None:
    """The returned future holds what the bucket was before its reduction."""
    def on_bucket(self: OverlapSession, state: object, bucket: object) -> object:
        local = bucket.buffer().clone()
        future = right(self, state, bucket)
        return future.then(lambda done: local)

    right = swap(OverlapSession, "on_bucket", on_bucket)
