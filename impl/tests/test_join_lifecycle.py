"""The lifecycles of contexts and sessions make the moves of their tables and no others."""

import itertools

import pytest

from impl.errors import IllegalMove
from impl.join.lifecycle import BLOCK_MOVES, SESSION_MOVES, BlockState, SessionState, moved

TABLES = [(BlockState, BLOCK_MOVES), (SessionState, SESSION_MOVES)]


@pytest.mark.parametrize(
    ("now", "to", "legal"), [(a, b, table) for kind, table in TABLES for a, b in itertools.product(kind, kind)]
)
def test_a_move_is_made_exactly_if_the_table_holds_it(now, to, legal):
    if to in legal[now]:
        assert moved(now, to, legal) is to
        return
    with pytest.raises(IllegalMove, match=f"from {now.value} to {to.value}"):
        moved(now, to, legal)


@pytest.mark.parametrize(("kind", "table"), TABLES)
def test_every_state_has_a_row(kind, table):
    assert set(table) == set(kind)


def test_what_is_closed_stays_closed_and_what_was_left_can_be_entered_again():
    assert not SESSION_MOVES[SessionState.CLOSED]
    assert BlockState.OPEN in BLOCK_MOVES[BlockState.LEFT]


def test_every_session_can_be_closed_since_an_exception_may_come_at_any_time():
    assert all(SessionState.CLOSED in SESSION_MOVES[state] for state in set(SessionState) - {SessionState.CLOSED})
