"""The two lifecycles of a join, each an enum with the table of its legal moves: a context's and a session's."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import TypeVar

from ..errors import IllegalMove


class BlockState(Enum):
    """Where a ``Join`` object stands."""

    BUILT = "built"  # joinables are bound, the block has not begun
    OPEN = "open"  # inside the block
    LEFT = "left"  # outside again; may be entered once more


class SessionState(Enum):
    """Where this rank stands inside one session."""

    LIVE = "live"  # it has inputs and takes part with contributions
    SHADOWING = "shadowing"  # it has run out and follows the ranks that are live
    ENDING = "ending"  # everybody has run out: the post hooks run
    CLOSED = "closed"  # left, in good order or by an exception


BLOCK_MOVES: Mapping[BlockState, tuple[BlockState, ...]] = {
    BlockState.BUILT: (BlockState.OPEN,),
    BlockState.OPEN: (BlockState.LEFT,),
    BlockState.LEFT: (BlockState.OPEN,),
}

SESSION_MOVES: Mapping[SessionState, tuple[SessionState, ...]] = {
    SessionState.LIVE: (SessionState.SHADOWING, SessionState.ENDING, SessionState.CLOSED),
    SessionState.SHADOWING: (SessionState.ENDING, SessionState.CLOSED),
    SessionState.ENDING: (SessionState.CLOSED,),
    SessionState.CLOSED: (),
}

State = TypeVar("State", bound=Enum)


def moved(now: State, to: State, legal: Mapping[State, tuple[State, ...]]) -> State:
    """The state after the move; ``IllegalMove`` if the table does not hold it."""
    if to not in legal[now]:
        allowed = ", ".join(sorted(state.value for state in legal[now])) or "nothing"
        raise IllegalMove(f"A join cannot go from {now.value} to {to.value}, only to {allowed}.")
    return to
