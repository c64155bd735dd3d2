"""A sample of ``make kill-test``: runs killed at random moments lose nothing and leave nobody running."""

import sys

import pytest

from . import killing

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="looks at processes in /proc"),
]


@pytest.mark.long
@pytest.mark.parametrize(("kind", "kills"), [("conformance", 2), ("nightly", 2)])
def test_a_run_that_is_killed_at_any_moment_loses_nothing_and_leaves_nobody(tmp_path, kind, kills):
    (made,) = killing.kill_all([kind], kills, seed=3, place=tmp_path / "place", minutes=5)
    assert made.tally.faults == [], killing.table([made])
    assert made.tally.kills + made.tally.ended == kills
    assert made.tally.whole >= 2
