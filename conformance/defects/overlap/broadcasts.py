"""Defects of area overlap: broadcasts."""

from __future__ import annotations

from ..planting import defect, edit


@defect("HOOK-026", "HOOK-027", "HOOK-030")
def buckets_are_broadcast_backwards() -> None:
    """In the sequential variant the buckets are stepped and sent from the last to the first."""
    edit(
        "    for flight in due_flights:\n        self._step_and_send(",
        "    for flight in reversed(due_flights):\n        self._step_and_send(",
    )


@defect("HOOK-026", "HOOK-028")
def only_the_first_piece_is_sent() -> None:
    """Only the first piece of a sharded bucket is broadcast."""
    edit("for piece in part.pieces])", "for piece in part.pieces[:1]])")


@defect("HOOK-027")
def own_buckets_go_first() -> None:
    """Each rank steps and sends its own buckets before it takes part in those of the others."""
    edit(
        "    for flight in due_flights:\n        self._step_and_send(",
        "    for flight in sorted(due_flights, key=lambda flight: not flight.part.own):\n        self._step_and_send(",
    )


@defect("HOOK-026", worlds=(3,))
def owners_broadcast_in_descending_order() -> None:
    """Of a bucket with several owners the highest rank broadcasts first."""
    edit("in sorted(places))", "in sorted(places, reverse=True))")
