"""What ranks do with the time they are given."""

import pytest

from perf.measure.clusters import Clusters
from perf.measure.on_ranks import Order
from perf.measure.runner import Limit, Runner
from perf.plan.planning import Place, plan
from perf.plan.sweep import _checked

SWEEP = _checked("mine", {"cells": [{"workload": "light"}], "block": 2}, "mine")


@pytest.fixture(scope="module")
def runner():
    with Clusters() as clusters:
        yield Runner(clusters)


def measured(runner, seconds, rounds):
    (group,) = plan(SWEEP, ["torch"], 1, lambda _: Place("gloo", "cpu")).groups
    order = Order(group, {"torch": "torch"}, rounds, 3, seconds, SWEEP.block, SWEEP.epoch)
    return list(runner.measure(order, lambda: Limit(300)))


def test_without_a_time_every_cell_has_its_rounds(runner):
    for row in measured(runner, None, 4):
        assert row["status"] == "ok", row["reason"]
        assert sorted(set(row["block"])) == [0, 1, 2, 3]


def test_when_time_is_short_a_cell_has_one_round_and_one_turn_of_warm_up(runner):
    for row in measured(runner, 1e-4, 100):
        assert row["status"] == "ok", row["reason"]
        assert set(row["block"]) == {0}
        assert len(row["warmup_ns"]) == SWEEP.block + 1


def test_a_run_that_outlasts_its_limit_is_a_hang_unless_a_budget_set_the_limit():
    assert Limit(5).passed("measuring")[0] == "hung"
    assert Limit(5, by_budget=True).passed("measuring")[0] == "not run"
