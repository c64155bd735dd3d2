"""Few nights: what stands out is a doubt, and an alarm only if tonight's code is slower than an earlier one's."""

import numpy as np
import pytest

from reports.judging import DEFAULT
from reports.judging.few_nights import FewNights, PairedRun, slower
from reports.judging.nights import Measured
from reports.judging.watch import Watch
from reports.simulate.few_nights import FewNightsModel, replayed

SERIES = 12
ERRORS = np.full(SERIES, 0.004)
POOL = np.ones(SERIES, dtype=np.int64)
NOBODY, EVERYBODY = np.zeros(SERIES, dtype=bool), np.ones(SERIES, dtype=bool)


def measured(*attempts, scatter=0.01, blocks=24):
    draw = np.random.default_rng(1)
    each = [attempt * np.exp(scatter * draw.normal(size=blocks)) for attempt in attempts]
    return Measured(tuple(np.concatenate(each).tolist()), tuple(attempts), "", "ok", "")


def beside(now, before, **more):
    return slower(PairedRun(measured(*now, **more), measured(*before, **more), ""), DEFAULT)


def test_tonights_code_must_be_slower_in_every_repetition_and_by_more_than_they_scatter():
    before = (1.0, 1.01, 0.99, 1.0)
    assert beside((1.15, 1.14, 1.16, 1.15), before)
    assert not beside((1.15, 1.14, 1.16, 1.0), before)  # once it was not
    assert not beside((1.15, 1.14, 1.16), before)  # too few
    assert not beside((1.04, 1.05, 1.04, 1.04), before)  # too little
    assert not beside((1.15, 1.45, 1.04, 1.15), before)  # it scatters too much to be sure
    assert not beside((1.15, 1.14, 1.16, 1.15), before, scatter=0.5)  # its blocks do


def nights(*values, pools=POOL):
    """A machine after these nights; each is the value of the first series, the others lie still."""
    watch = Watch(SERIES, DEFAULT, pools=pools)
    draw = np.random.default_rng(2)
    for value in values:
        tonight = 0.003 * draw.normal(size=SERIES)
        tonight[0] += value
        watch.take(tonight, ERRORS)
    return watch


def tonight(value):
    return np.array([value] + [0.0] * (SERIES - 1))


def test_the_third_night_alarms_for_a_ratio_whose_code_is_slower_and_for_nothing_else():
    assert nights(0, 0).doubtful(nights(0, 0).look(tonight(0.14), ERRORS)).tolist() == [True] + [False] * (SERIES - 1)
    step = nights(0, 0).take(tonight(0.14), ERRORS, slower=EVERYBODY)
    assert np.flatnonzero(step.regressed).tolist() == [0]
    assert step.look.span[0] == 1
    for watch, code in ((nights(0, 0), NOBODY), (nights(0), EVERYBODY), (nights(0, 0, pools=0 * POOL), EVERYBODY)):
        assert not watch.take(tonight(0.14), ERRORS, slower=code).regressed.any()
    watched = nights(0, 0).take(tonight(0.14), ERRORS, slower=NOBODY)
    assert watched.look.evidence[0] == DEFAULT.suspect
    assert watched.learning.tolist() == [False] + [True] * (SERIES - 1)


@pytest.mark.parametrize("value", [0.045, -0.14])
def test_what_is_small_or_faster_is_no_doubt(value):
    watch = nights(0, 0)
    assert not watch.doubtful(watch.look(tonight(value), ERRORS)).any()


def test_nights_that_scatter_or_blocks_that_do_leave_no_doubt():
    restless = nights(0.1, -0.1)
    assert not restless.doubtful(restless.look(tonight(0.14), ERRORS)).any()
    calm = nights(0, 0)
    assert not calm.doubtful(calm.look(tonight(0.14), 20 * ERRORS)).any()
    assert not calm.doubtful(calm.look(tonight(0.14), np.full(SERIES, np.nan))).any()


def test_noise_is_drawn_towards_that_of_all_ratios():
    young = FewNights(POOL, DEFAULT)
    draw = np.random.default_rng(3)
    for _ in range(3):
        values = 0.03 * draw.normal(size=SERIES)
        values[0] = 0.0  # by chance it has not moved yet
        young.add(EVERYBODY, values, ERRORS)
    noise = young.noise(ERRORS)
    assert 0.015 < noise[0] < 0.035
    assert np.median(noise) == pytest.approx(0.03, rel=0.35)
    assert (young.detectable(ERRORS) > np.log1p(DEFAULT.early)).all()


def test_with_nights_enough_the_ordinary_rule_takes_over():
    watch = nights(*[0] * DEFAULT.least)
    assert watch.judged.all()
    assert not watch.take(tonight(0.14), ERRORS, slower=EVERYBODY).regressed.any()  # one night alone


def test_an_alarm_stands_until_it_is_accepted_and_then_its_level_is_the_one_to_compare_with():
    watch = nights(0, 0)
    watch.take(tonight(0.14), ERRORS, slower=EVERYBODY)
    for _ in range(3):
        step = watch.take(tonight(0.14), ERRORS)
        assert step.raised[0]
        assert not step.regressed.any()
    watch.accept(0)
    for _ in range(3):
        step = watch.take(tonight(0.14), ERRORS, slower=EVERYBODY)
        assert not step.regressed.any()
    assert watch.take(tonight(0.28), ERRORS, slower=EVERYBODY).regressed[0]


def test_simulated_machines_hold_the_truth_and_nights_that_are_odd_as_a_whole_do_not_alarm():
    small = FewNightsModel(machines=6, error=0.005, starts=0.002, nightly=0.004, outliers=0, strays=0, noisy=0)
    assert replayed(small, 1, DEFAULT) == replayed(small, 1, DEFAULT)
    found = replayed(FewNightsModel(**{**vars(small), "step": 0.15}), 1, DEFAULT)
    assert found.found[0] >= 0.9
    assert found.false == 0
    odd = replayed(FewNightsModel(**{**vars(small), "outliers": 0.3}), 1, DEFAULT)
    assert odd.again > 0.02
    assert odd.false == 0
