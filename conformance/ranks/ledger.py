"""The recording process group: every collective of any subject, in order, on every rank. (Skeleton.)"""

from __future__ import annotations

from .outcomes import Event


def so_far() -> tuple[Event, ...]:
    """The collectives that this process has started so far."""
    return ()
