"""The judgement on plain arrays: what it finds, what it lets pass, and that later nights change no verdict."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reports.judging import DEFAULT, Parameters
from reports.judging.dating import began, effect
from reports.judging.reference import Memory, fleet_scatter, medians
from reports.judging.watch import Watch


def noise(series, nights, seed=0, size=0.03):
    return np.random.default_rng(seed).normal(size=(series, nights)) * size


def watched(values, **more):
    watch = Watch(len(values), DEFAULT, **more)
    return [watch.take(values[:, night]) for night in range(values.shape[1])], watch


def nights_of(steps, what):
    return [(int(one), night) for night, step in enumerate(steps) for one in np.flatnonzero(getattr(step, what))]


def test_a_step_is_found_soon_and_dated():
    values = noise(20, 60, 3)
    values[:, 45:] += np.log(1.15)
    steps, watch = watched(values)
    found = nights_of(steps, "regressed")
    assert [night for _, night in found if night < 45] == []
    assert {one for one, night in found if night < 50} == set(range(20))
    assert all(abs(night + 1 - steps[night].look.span[one] - 45) <= 2 for one, night in found)
    assert watch.raised.all()


def test_an_improvement_becomes_the_level_and_going_back_is_a_regression():
    values = noise(1, 100, 1, size=0.01)
    values[:, 40:80] -= 0.15
    steps, _ = watched(values)
    (improved,) = nights_of(steps, "improved")
    (regressed,) = nights_of(steps, "regressed")
    assert 41 <= improved[1] <= 43
    assert 81 <= regressed[1] <= 83


def test_a_regression_that_goes_away_is_resolved_and_the_level_is_the_old_one():
    values = noise(1, 90, 2, size=0.01)
    values[:, 40:60] += 0.15
    steps, watch = watched(values)
    (resolved,) = nights_of(steps, "returned")
    assert 61 <= resolved[1] <= 63
    assert not watch.raised[0]
    assert steps[-1].look.reference.level[0] == pytest.approx(0, abs=0.01)
    assert len(nights_of(steps, "regressed")) == 1
    assert nights_of(steps, "improved") == []


def test_an_accepted_regression_is_the_new_level_and_a_further_one_is_news():
    values = noise(1, 120, 3, size=0.01)
    values[:, 40:] += 0.15
    values[:, 80:] += 0.15
    watch = Watch(1, DEFAULT)
    found = []
    for night in range(120):
        if watch.take(values[:, night]).regressed[0]:
            found.append(night)
        if night == 50:
            watch.accept(0)
            assert not watch.raised[0]
    assert [41 <= found[0] <= 43, 81 <= found[1] <= 83, len(found)] == [True, True, 2]


def test_a_slow_change_does_not_become_its_own_reference():
    values = noise(10, 160, 4, size=0.01) + np.clip(np.arange(160) - 60, 0, 60) * 0.002
    steps, _ = watched(values)
    assert {one for one, night in nights_of(steps, "regressed") if night > 60} == set(range(10))


@settings(max_examples=20, deadline=None)
@given(night=st.integers(12, 55), height=st.floats(-5, 5), seed=st.integers(0, 20))
def test_a_single_night_among_ordinary_ones_never_alarms_however_far_off(night, height, seed):
    values = np.clip(noise(1, 60, seed), -0.03, 0.03)
    values[0, night] += height
    steps, _ = watched(values)
    assert nights_of(steps, "regressed") + nights_of(steps, "improved") == []


@settings(max_examples=20, deadline=None)
@given(night=st.integers(12, 55), sign=st.sampled_from([-1, 1]), seed=st.integers(0, 20))
def test_how_far_off_a_single_night_lies_is_no_matter(night, sign, seed):
    """Together with neighbours that happen to lie off as well it may alarm (seed 1, night 23): at any height, then."""
    found = []
    for height in (0.5, 5.0):
        values = np.clip(noise(1, 60, seed), -0.04, 0.04)
        values[0, night] += sign * height
        steps, _ = watched(values)
        found.append((nights_of(steps, "regressed"), nights_of(steps, "improved")))
    assert found[0] == found[1]


@settings(max_examples=10, deadline=None)
@given(
    seed=st.integers(0, 50),
    cut=st.integers(15, 79),
    gaps=st.sets(st.integers(0, 79), max_size=30),
    step=st.sampled_from([0.0, 0.05, 0.2]),
)
def test_later_nights_change_no_verdict_and_gaps_are_only_gaps(seed, cut, gaps, step):
    values = noise(3, 80, seed)
    values[:, 40:] += step
    values[:, sorted(gaps)] = np.nan
    whole, _ = watched(values)
    part, _ = watched(values[:, :cut])
    for one, other in zip(part, whole, strict=False):
        for name in ("regressed", "improved", "returned", "raised", "learning"):
            assert (getattr(one, name) == getattr(other, name)).all()
        assert np.array_equal(one.look.evidence, other.look.evidence)
    closed, _ = watched(values[:, ~np.isnan(values[0])])
    assert [nights_of(closed, "regressed") != []] == [nights_of(whole, "regressed") != []]


def test_looking_changes_nothing():
    values = noise(5, 60, 6)
    watch, other = Watch(5, DEFAULT), Watch(5, DEFAULT)
    for night in range(60):
        watch.look(values[:, night] + 0.3)
        assert np.array_equal(watch.take(values[:, night]).look.evidence, other.take(values[:, night]).look.evidence)


def test_a_night_on_which_everything_scatters_weighs_less_but_a_common_step_does_not():
    judged = np.ones(200, dtype=bool)
    draw = np.random.default_rng(0).normal(size=200)
    assert fleet_scatter(draw, judged, DEFAULT) == 1.0
    assert fleet_scatter(draw * 2.5, judged, DEFAULT) == pytest.approx(2.5, rel=0.25)
    assert fleet_scatter(draw + np.where(np.arange(200) < 120, 4, 0), judged, DEFAULT) < 1.6
    assert fleet_scatter(draw[:5] * 9, judged[:5], DEFAULT) == 1.0


def test_level_and_noise_are_estimated_without_bias_and_outliers_move_them_little():
    memory = Memory(400, DEFAULT)
    values = noise(400, 40, 7)
    values[:, ::20] += 3.0
    for night in range(40):
        memory.add(np.ones(400, dtype=bool), values[:, night])
    found = memory.reference()
    assert found.level.mean() == pytest.approx(0, abs=0.006)
    assert np.median(found.noise) == pytest.approx(0.03, rel=0.15)


@given(st.lists(st.lists(st.floats(-10, 10), max_size=6), min_size=1, max_size=5))
def test_medians_are_those_of_the_numbers_that_are_there(rows):
    padded = np.full((len(rows), 6), np.nan)
    for place, row in enumerate(rows):
        padded[place, : len(row)] = row
    found = medians(padded, np.array([len(row) for row in rows]))
    for row, value in zip(rows, found, strict=True):
        assert (np.isnan(value) and not row) or value == pytest.approx(np.median(row))


def test_later_nights_tell_better_when_a_change_began():
    values = np.concatenate([np.zeros(40), np.full(20, 0.1)]) + noise(1, 60, 8)[0]
    values[39] += 0.3  # an outlier just before it
    assert abs(began(values, since=37, found=43, end=60, noise=0.03, parameters=DEFAULT) - 40) <= 1
    apart, half = effect(values[40:], 0.0, 40, 0.03, DEFAULT)
    assert abs(apart - 0.1) < half < 0.03


def test_parameters_that_make_no_sense_are_refused():
    with pytest.raises(ValueError, match="a single night never decides"):
        Parameters(spans=(1, 2), risks=(1e-4, 1e-4))
    with pytest.raises(ValueError, match="nights must satisfy"):
        Parameters(least=50)
    assert "40" in " ".join(DEFAULT.sentences())
