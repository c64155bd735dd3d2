"""Planning: sweeps become groups without any process, and what cannot be planned is refused in one sentence."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformance.bad_input import BadInput
from perf.commands import run
from perf.measure import budget
from perf.measure.budget import Budget, duration
from perf.measure.links import Links
from perf.measure.on_ranks import Order
from perf.measure.reliance import Judged
from perf.plan import sweep as sweeps
from perf.plan.axes import AXES, pointless
from perf.plan.backends import place_of
from perf.plan.cells import Cell
from perf.plan.planning import MOST_VARIANTS, Place, estimate, plan, seconds

CPU = lambda _world: Place("gloo", "cpu")  # noqa: E731


def planned(cells, world=4, subjects=("impl", "torch"), **more):
    return plan(sweeps._checked("mine", {"cells": cells, **more}, "mine.toml"), list(subjects), world, CPU)


def one_cell(**axes):
    return planned([axes], subjects=["impl"]).groups[0].cells[0]


@pytest.mark.parametrize("name", sweeps.names())
@pytest.mark.parametrize("world", [1, 2, 3, 8])
def test_every_sweep_that_ships_can_be_planned(name, world):
    try:
        made = plan(sweeps.load(name), ["impl", "torch"], world, CPU)
    except BadInput:
        fewest = {"impl-vs-torch": 2, "skew": 2, "network": 2, "network-map": 4, "network-join": 2, "network-delay": 2}
        assert world < fewest.get(name, 1)
        return
    names = [group.name for group in made.groups]
    assert len(names) == len(set(names))
    series = [cell.series for group in made.groups for cell in group if cell.copy == 1]
    assert len(series) == len(set(series))
    for group in made.groups:
        assert len(group.cells) <= MOST_VARIANTS + 2
        assert len({cell.shared for cell in group}) == 1
        assert not any(pointless(cell.axes()) for cell in group)


def test_every_group_has_one_cell_twice_so_that_noise_is_seen():
    for group in planned([{"workload": ["mlp", "tiny"], "bucket_view": [False, True]}]).groups:
        (duplicate,) = [cell for cell in group if cell.copy == 2]
        assert dataclasses.replace(duplicate, copy=1) in group.cells


def test_subjects_and_variants_share_a_group_and_other_axes_do_not():
    made = planned([{"workload": ["mlp", "tiny"], "world": [2, 4], "cap_mib": [1, 25.0]}])
    assert [len(group.cells) for group in made.groups] == [5, 5, 5, 5]
    assert {cell.subject for cell in made.groups[0]} == {"impl", "torch"}


def test_a_large_group_is_cut_without_parting_subjects():
    caps = [float(cap) for cap in range(1, 11)]
    made = planned([{"workload": "mlp", "cap_mib": caps}])
    assert len(made.groups) == 2
    for group in made.groups:
        pairs = {}
        for cell in group:
            pairs.setdefault(cell.cap_mib, set()).add(cell.subject)
        assert all(pair == {"impl", "torch"} for pair in pairs.values())


def test_the_steps_of_one_bucket_cap_stay_together():
    hooks = {"zero": "on", "hook": ["none", "sequential", "interleaved", "reduce_scatter"]}
    made = planned([{"workload": "mlp", "cap_mib": [1.0, 2.0, 4.0], **hooks}], subjects=["impl"])
    assert [sorted({cell.cap_mib for cell in group}) for group in made.groups] == [[1.0, 2.0, 4.0]]
    made = planned([{"workload": "mlp", "cap_mib": [1.0, 2.0, 4.0], **hooks}])
    assert [sorted({cell.cap_mib for cell in group}) for group in made.groups] == [[1.0], [2.0], [4.0]]


def test_a_combination_without_sense_is_left_out_with_its_reason():
    made = planned([{"hook": ["none", "sequential"], "zero": ["off", "on"]}])
    assert made.left_out == {"the overlap hooks step a ZeRO": 2}
    assert planned([{"world": [2, 6]}]).left_out == {"more than 4 ranks": 2}


def test_strategies_that_stop_with_the_shortest_rank_need_one_that_has_something():
    made = planned([{"skew": "halves", "skew_fraction": [0.5, 1.0], "strategy": ["join", "flag", "drop_last"]}])
    assert [len(group.cells) for group in made.groups] == [7, 3]
    assert made.left_out == {"nothing would be trained": 4}


def test_worlds_are_numbers_or_all_or_the_most():
    assert [group.world for group in planned([{"world": "all"}], world=6).groups] == [1, 2, 4, 6]
    assert [group.world for group in planned([{"world": "max"}], world=6).groups] == [6]
    made = plan(sweeps.load("scaling"), ["impl"], 4, CPU, exactly=True)
    assert {group.world for group in made.groups} == {4}


def test_the_floor_without_communication_is_no_subjects_cell():
    (local,) = [cell for cell in planned([{"hook": "local"}]).groups[0] if cell.copy == 1]
    assert local.subject == "none"


@pytest.mark.parametrize(
    ("skew", "fraction", "schedule"),
    [
        ("even", 0.5, (8, 8, 8, 8)),
        ("one_short", 0.5, (8, 8, 8, 4)),
        ("halves", 1.0, (0, 0, 8, 8)),
        ("linear", 0.5, (4, 5, 7, 8)),
        ("zero_input", 0.5, (8, 8, 8, 0)),
    ],
)
def test_schedules_follow_profile_and_fraction(skew, fraction, schedule):
    cell = one_cell(skew=skew, skew_fraction=fraction, strategy="join", unit="auto")
    assert cell.schedule(8) == schedule
    assert cell.trained(8) == schedule


@given(
    skew=st.sampled_from(["one_short", "linear", "halves"]), fraction=st.floats(0, 1), most=st.integers(2, 50),
    world=st.integers(2, 9),
)  # fmt: skip
def test_a_schedule_stays_between_its_ends(skew, fraction, most, world):
    made = planned([{"skew": skew, "skew_fraction": fraction, "strategy": "join"}], world=world)
    cell = made.groups[0].cells[0]
    schedule = cell.schedule(most)
    assert max(schedule) == most
    assert abs(min(schedule) - (1 - fraction) * most) <= 1
    assert dataclasses.replace(cell, strategy="drop_last").trained(most) == (min(schedule),) * world


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        ({"cells": [{"workload": "transfomer"}]}, "did you mean transformer"),
        ({"cells": [{"wrkload": "mlp"}]}, "unknown axis 'wrkload'; did you mean workload"),
        ({"cells": [{"bucket_view": "yes"}]}, "bucket_view cannot be 'yes'"),
        ({"cells": [{"bucket_view": 1}]}, "bucket_view cannot be 1"),
        ({"cells": [{"skew_fraction": 2}]}, "give a number from 0 to 1"),
        ({"cells": [{"cap_mib": "1"}]}, "cap_mib cannot be '1'"),
        ({"cells": [{"world": 1.5}]}, "world cannot be 1.5"),
        ({"cells": [{"subject": "torch"}]}, "give SUBJECT"),
        ({"cells": [{"workload": []}]}, "has no value"),
        ({"cells": []}, "at least one"),
        ({"cels": [{}], "cells": [{}]}, "did you mean cells"),
        ({"cells": [{}], "rounds": 0}, "rounds cannot be 0"),
    ],
)
def test_a_sweep_that_cannot_be_read_is_refused(raw, words):
    with pytest.raises(BadInput, match=words):
        sweeps._checked("mine", raw, "mine.toml")


def test_an_unknown_sweep_is_refused_with_the_nearest_name():
    with pytest.raises(BadInput, match="did you mean overlap"):
        sweeps.load("overlaps")
    with pytest.raises(BadInput, match="give the path"):
        sweeps.load("/nowhere/mine.toml")


def test_a_sweep_without_any_cell_is_refused():
    with pytest.raises(BadInput, match="no cell to measure at WORLD=4: more than 4 ranks"):
        planned([{"world": 8}])


def test_every_axis_has_a_legal_default():
    for name, axis in AXES.items():
        assert not axis.values or axis.default in axis.values, name


def test_estimates_grow_with_rounds_and_crowd():
    (group,) = planned([{}]).groups
    sweep = planned([{}]).sweep
    assert seconds(group, sweep, cores=4, rounds=10) < seconds(group, sweep, cores=4, rounds=20)
    assert seconds(group, sweep, cores=4) < seconds(group, sweep, cores=2)
    assert estimate(planned([{"workload": ["mlp", "tiny"]}]), 4) > estimate(planned([{}]), 4)


def test_a_budget_is_shared_out_and_bounds_every_run():
    made = planned([{"workload": ["mlp", "tiny"]}])
    some = Budget(100, made.sweep, 2)
    shares = [some.share(made.groups[:1]), some.share(made.groups)]
    assert 0 < shares[1] < shares[0] < 100
    assert some.limit(made.groups[0]).seconds < 100
    assert some.limit(made.groups[0]).by_budget
    assert not some.gone()
    assert Budget(1, made.sweep, 2).gone()
    assert Budget(None, made.sweep, 2).share(made.groups) is None
    assert not Budget(None, made.sweep, 2).limit(made.groups[0]).by_budget


def test_what_measuring_a_network_takes_is_no_part_of_what_is_left_for_its_cells(monkeypatch):
    made = planned([{}])
    (group,) = made.groups
    now, given_s = 0.0, []

    class SlowToMeetItsNetwork:
        def links(self, order):
            nonlocal now
            now += 60.0
            return Links()

        def measure(self, order, limit):
            given_s.append(order.seconds)
            return iter(())

    monkeypatch.setattr(budget.time, "monotonic", lambda: now)
    order = Order(group, {}, 8, 1, None, 4, 8)
    assert not list(run._rows(order, [], Judged(), SlowToMeetItsNetwork(), Budget(100, made.sweep, 2), False))
    assert 0 < given_s[0] < 100 - 60


@pytest.mark.parametrize(("text", "value"), [("90s", 90), ("10m", 600), ("1.5h", 5400)])
def test_a_duration_is_read(text, value):
    assert duration(text) == value


@pytest.mark.parametrize("text", ["", "0", "0s", "90", "ten", "5 days", "-3m"])
def test_what_is_no_duration_is_refused(text):
    with pytest.raises(BadInput, match="is no time"):
        duration(text)


def test_a_backend_that_cannot_be_had_is_refused(monkeypatch):
    monkeypatch.setattr("perf.plan.backends._gpus", lambda: 1)
    with pytest.raises(BadInput, match="one GPU per rank: WORLD=2 was asked for and there is 1 GPU"):
        place_of("nccl", 2)
    with pytest.raises(BadInput, match="did you mean gloo"):
        place_of("glo", 2)
    assert [place_of("auto", 2)(size).backend for size in (1, 2)] == ["nccl", "gloo"]
    assert place_of("gloo", 2)(1).backend == "gloo"


@pytest.mark.parametrize("name", [name for name in AXES if name != "subject"])
def test_cells_that_differ_on_an_axis_have_different_series(name):
    """An axis that a cell or its name leaves out would merge what was measured apart."""
    assert {field.name for field in dataclasses.fields(Cell)} == {*AXES, "backend", "device", "copy"}
    usual = {key: axis.default for key, axis in AXES.items()} | {"world": 2, "skew": "linear", "subject": "impl"}
    cell = Cell(**usual, backend="gloo", device="cpu")
    values = AXES[name].values or (1, 3)
    series = {dataclasses.replace(cell, **{name: value}).series for value in values if value != "auto"}
    assert len(series) == len([value for value in values if value != "auto"])
