"""How far a reader walks through one iteration, held to bounds: they may go down, and not up."""

import pytest

from impl.tests.walk import measured

pytestmark = pytest.mark.slow

#: files, changes of file and calls of a settled iteration, as ``python -m impl.tests.walk`` prints them
BOUNDS = {"plain": (12, 70, 150), "inside a join": (16, 100, 220)}


@pytest.mark.parametrize("where", BOUNDS)
def test_an_iteration_stays_within_few_files_and_few_calls(where):
    walk = measured(joined=where != "plain")
    for found, bound in zip((len(walk.files), walk.changes, walk.calls), BOUNDS[where], strict=True):
        assert found <= bound, "\n".join(walk.steps)
