"""What rounding may do stays well below what is allowed, and mistakes well above, in all that the sweeps measure.

By default one case of each kind runs; with ``ROUNDING=all`` in the environment (``make rounding``) all worlds from 1 to
16 do, which takes a quarter of an hour.
"""

import os

import pytest
import torch

from perf.measure.sensitivity import cases, even, expectation, mistakes, rounding, stale, train

pytestmark = pytest.mark.slow

MARGIN = 3.0  # below 1 / MARGIN of what is allowed, and above MARGIN times that
WORLDS, FEW = range(1, 17), (3, 8)
SHORTEST = 2  # batches of the shortest turn that a sweep can ask for


def kind(case):
    even = len(set(case.schedule)) == 1
    return case.workload, case.optimizer, len(case.ranks) == 1, even, case.follows_last, case.joins


def chosen():
    """All cases, or one of each kind in a few worlds; and every workload with every optimizer."""
    if os.environ.get("ROUNDING") == "all":
        return sorted({*cases(WORLDS), *even(2, SHORTEST), *even(5, 6)})
    return sorted({*{kind(case): case for case in cases(FEW)}.values(), *even(2, SHORTEST)})


@pytest.fixture(autouse=True)
def one_thread():
    """As on the ranks."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.long
@pytest.mark.parametrize("case", chosen(), ids=str)
def test_rounding_is_allowed_and_mistakes_are_not(case):
    trained = train(case)
    wanted = expectation(case, trained)
    allowed = {way: gap for way, gap in rounding(case, wanted).items() if not gap <= 1 / MARGIN}
    assert not allowed, f"so far in units of what is allowed: {allowed}"
    missed = {what: gap for what, gap in mistakes(case, trained, wanted).items() if not gap >= MARGIN}
    assert not missed, f"hardly seen, in units of what is allowed: {missed}"
    unseen = {what: gap for what, gap in stale(case, trained, wanted).items() if not gap >= MARGIN}
    assert not wanted.buffers[0].names or not unseen, f"buffers hardly seen as wrong: {unseen}"
