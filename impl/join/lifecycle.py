"""The two lifecycles of a join, each an enum with the table of its legal moves: a context's and a session's."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import TypeVar

from ..errors import IllegalMove


class Stage(Enum):
    """Where a ``Join`` object stands."""

    BUILT = "built"  # joinables are bound, the block has not begun
    OPEN = "open"  # inside the block
    LEFT = "left"  # outside again; may be entered once more


class Phase(Enum):
    """Where this rank stands inside one session."""

    LIVE = "live"  # it has inputs and takes part with contributions
    SHADOWING = "shadowing"  # it has run out and follows the ranks that are live
    ENDING = "ending"  # everybody has run out: the post hooks run
    CLOSED = "closed"  # left, in good order or by an exception


STAGES: Mapping[Stage, frozenset[Stage]] = {
    Stage.BUILT: frozenset({Stage.OPEN}),
    Stage.OPEN: frozenset({Stage.LEFT}),
    Stage.LEFT: frozenset({Stage.OPEN}),
}

PHASES: Mapping[Phase, frozenset[Phase]] = {
    Phase.LIVE: frozenset({Phase.SHADOWING, Phase.ENDING, Phase.CLOSED}),
    Phase.SHADOWING: frozenset({Phase.ENDING, Phase.CLOSED}),
    Phase.ENDING: frozenset({Phase.CLOSED}),
    Phase.CLOSED: frozenset(),
}

State = TypeVar("State", bound=Enum)


def moved(now: State, to: State, legal: Mapping[State, frozenset[State]]) -> State:
    """The state after the move; ``IllegalMove`` if the table does not hold it."""
    if to not in legal[now]:
        allowed = ", ".join(sorted(state.value for state in legal[now])) or "nothing"
        what = type(now).__name__.lower()
        raise IllegalMove(f"The {what} of a join cannot go from {now.value} to {to.value}, only to {allowed}.")
    return to
