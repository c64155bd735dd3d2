"""Derived figures, against sums done by hand."""

import pytest

from perf.analyse import derived
from perf.tests.made_up import rows


def by_variant(made):
    return {row["series"].split(" | ")[1]: row for row in made}


def steady(cell, rank):
    """Milliseconds of a step."""
    return {"local": 9.0, "no_sync": 10.0}.get(cell.hook, 12.0)


STEP = [{"workload": "mlp", "optimizer": "adam", "hook": ["none", "no_sync", "local"]},
        {"workload": "mlp", "optimizer": "adam", "zero": "on", "hook": ["none", "reduce_scatter"]}]  # fmt: skip


def test_bytes_that_a_correct_step_moves():
    made = by_variant(rows(STEP, steady, ["impl"], world=4))
    assert derived.bus_bytes(made["impl"]) == 2 * 3 / 4 * 4000 + 100
    assert derived.bus_bytes(made["impl · zero"]) == 3 * 3 / 4 * 4000 + 100
    assert derived.bus_bytes(made["impl · reduce_scatter · zero"]) == 2 * 3 / 4 * 4000 + 100
    assert derived.bus_bytes(made["none · local"]) == 0
    assert derived.bus_bytes_per_s(made["impl"]) == pytest.approx(6100 / 12e-3, rel=0.02)


def test_sparse_gradients_have_no_such_number_and_one_rank_moves_nothing():
    (sparse, *_) = rows([{"workload": "embedding"}], steady, ["impl"])
    assert derived.bus_bytes(sparse) is None
    (alone, *_) = rows([{"workload": "mlp"}], steady, ["impl"], world=1)
    assert derived.bus_bytes(alone) == 0


def test_exposed_time_is_against_the_same_library_without_synchronisation():
    made = rows(STEP, steady, ["impl"])
    found = derived.exposed(by_variant(made)["impl"], made)
    assert found.point == pytest.approx(2e6, rel=0.15)
    assert found.low < found.point < found.high
    without = [row for row in made if row["axes"]["hook"] != "no_sync"]
    assert derived.exposed(by_variant(made)["impl"], without).point == pytest.approx(3e6, rel=0.15)
    assert derived.exposed(by_variant(made)["impl"], [by_variant(made)["impl"]]) is None


def test_host_time_for_each_parameter():
    made = rows(STEP, steady, ["impl"])
    # two thirds of 12 ms against two thirds of 9 ms, over 10 parameters
    assert derived.host_ns_per_parameter(by_variant(made)["impl"], made) == pytest.approx(2e6 / 10, rel=0.1)


UNEVEN = [{"workload": "mlp", "skew": "halves", "skew_fraction": 0.5, "strategy": ["join", "drop_last"]},
          {"workload": "mlp", "skew": "halves", "skew_fraction": 0.5, "hook": "local"}]  # fmt: skip


def uneven(cell, rank):
    """Rank 0 has 4 inputs of 3 ms, rank 1 has 8 of 2 ms."""
    if cell.hook == "local":
        return (12.0, 16.0)[rank]
    return 25.0 if cell.strategy == "join" else 14.0


def test_the_bound_is_the_sum_of_the_slowest_active_ranks_own_time():
    made = rows(UNEVEN, uneven, ["impl"])
    floor = derived.floor_of(made[0], made)
    of = {row["axes"]["strategy"]: row for row in made}
    joined = derived.bound(of["join"], floor)
    assert sum(joined.values()) / len(joined) == pytest.approx(4 * 3e6 + 4 * 2e6, rel=0.02)
    dropped = derived.bound(of["drop_last"], floor)
    assert sum(dropped.values()) / len(dropped) == pytest.approx(4 * 3e6, rel=0.02)


def test_a_rank_waits_for_what_it_does_not_compute():
    made = rows(UNEVEN, uneven, ["impl"])
    waits = derived.waits_ns(made[0], derived.floor_of(made[0], made))
    assert waits == pytest.approx([13e6, 9e6], rel=0.05)


def test_figures_go_into_the_record_and_void_floors_do_not_count():
    made = rows(STEP, steady, ["impl"])
    noted = by_variant(derived.noted(made))
    assert {"bus_bytes", "bus_bytes_per_s", "exposed_ns", "exposed_interval_ns", "host_ns_per_parameter", "bound_ns",
            "wait_ns"} <= set(noted["impl"]["derived"])  # fmt: skip
    assert "exposed_ns" not in noted["none · local"]["derived"]
    for row in made:
        if row["axes"]["hook"] != "none":
            row["status"] = "void"
    assert "exposed_ns" not in by_variant(derived.noted(made))["impl"]["derived"]
