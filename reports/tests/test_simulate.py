"""The simulated year is what it says, and the figures made from it count what they say."""

import numpy as np
import pytest

from reports.judging import DEFAULT
from reports.simulate import recorded
from reports.simulate.power import QUIET as NOTHING
from reports.simulate.power import Figures, _plain_words, figures
from reports.simulate.replay import change_points, replay, threshold
from reports.simulate.year import World, year

pytestmark = pytest.mark.slow

QUIET = World(series=12, nights=80, outliers=0.0, noisy=0.0, missed=0.0, earliest=30, latest=20)


def test_the_same_seed_gives_the_same_year_and_the_noise_is_as_asked():
    world = World(series=400, nights=100, outliers=0.0, noisy=0.0, missed=0.0)
    one, same, other = year(world, 1, 3), year(world, 1, 3), year(world, 2, 3)
    assert np.array_equal(one.first, same.first)
    assert not np.array_equal(one.first, other.first)
    assert one.first.std() == pytest.approx(0.03, rel=0.02)
    again = np.corrcoef(one.first.ravel(), one.again[0].ravel())[0, 1]
    assert again == pytest.approx(world.lasting, abs=0.03)


def test_the_truth_is_in_the_numbers():
    stepped = year(World(series=3, nights=90, noise=1e-6, step=0.1, outliers=0.0, missed=0.1), 1, 1)
    for one, begin in enumerate(stepped.begins):
        assert np.nanmax(np.abs(stepped.first[one, :begin])) < 1e-4
        assert np.nanmin(stepped.first[one, begin:]) == pytest.approx(np.log(1.1), abs=1e-4)
    assert 2 <= np.isnan(stepped.first).all(axis=0).sum() <= 20
    moved = year(World(series=1, nights=90, noise=1e-6, outliers=0.0, missed=0.0, other_machine=40), 1, 1)
    assert moved.first[0, 39] == pytest.approx(0, abs=1e-4)
    assert moved.first[0, 40] == pytest.approx(np.log(0.8), abs=1e-4)


def test_large_steps_are_found_and_a_new_machine_is_no_change():
    found = figures("x", "y", replay(year(World(**{**vars(QUIET), "step": 0.25}), 3, DEFAULT.again), DEFAULT))
    assert found.found[5] == 1.0
    assert found.false == 0
    assert found.dated == 1.0
    moved = replay(year(World(**{**vars(QUIET), "other_machine": 40, "noise": 0.01}), 3, DEFAULT.again), DEFAULT)
    assert not moved.gains.any()
    assert not moved.alarms.any()


def test_the_rivals_are_judged_by_the_same_truth():
    stepped = year(World(**{**vars(QUIET), "step": 0.25}), 3, 1)
    assert figures("x", "y", threshold(stepped)).found[3] == 1.0
    where = {values.tobytes(): int(begin) for values, begin in zip(stepped.first, stepped.begins, strict=True)}

    def knows(values):
        """Finds the change that there is, as soon as it can."""
        (begin,) = [
            begin for whole, begin in where.items() if np.frombuffer(whole)[: len(values)].tobytes() == values.tobytes()
        ]
        return [begin] if len(values) > begin else []

    told = figures("x", "y", change_points(stepped, knows))
    assert (told.found[1], told.false) == (1.0, 0)


def test_other_generators_differ_from_the_tuned_one_as_they_say():
    quiet = {"outliers": 0.0, "noisy": 0.0, "missed": 0.0, "earliest": 10, "latest": 10}
    alike = year(World(series=60, nights=300, common=0.5, **quiet), 1, 1)
    between = np.corrcoef(alike.first)
    assert between[np.triu_indices(60, 1)].mean() == pytest.approx(0.5 * 0.5, abs=0.05)
    drifting = year(World(series=60, nights=300, slow=2.0, **quiet), 1, 1).first
    halves = drifting[:, :150].mean(axis=1) - drifting[:, 150:].mean(axis=1)
    assert halves.std() > 5 * 0.03 * np.sqrt(2 / 150)
    unequal = year(World(series=400, nights=50, unequal=0.5, **quiet), 1, 1).first.std(axis=1)
    assert np.log(unequal).std() == pytest.approx(0.5, abs=0.1)
    lasting = year(World(series=60, nights=300, noise=1e-6, outliers=0.02, burst=3.0, noisy=0.0, missed=0.0), 1, 1)
    off = np.abs(lasting.first) > 0.05
    assert off.mean() == pytest.approx(0.06, abs=0.01)
    assert (off[:, 1:] & off[:, :-1]).sum() > 0.5 * off.sum()


def test_recorded_noise_is_that_of_the_published_rounds():
    noises = recorded.noises()
    assert len(noises) > 20
    assert all(len(one) >= 20 and np.std(one) == pytest.approx(1) for one in noises)
    world = World(**{**vars(QUIET), "lasting": 0.0, "recorded": noises})
    drawn = year(world, 1, 1).first
    known = np.unique(np.concatenate([np.asarray(one) for one in noises]))
    assert all(np.abs(known - value / 0.03).min() < 1e-9 for value in drawn.ravel()[:100])
    assert recorded.noises(recorded.PUBLISHED / "nothing") == ()


def test_false_alarms_are_counted_by_history_and_told_in_plain_words(capsys):
    judged = [threshold(year(World(series=10, nights=80), seed, 1)) for seed in range(4)]
    together, each = figures("x", "y", *judged), [figures("x", "y", one) for one in judged]
    assert (together.verdicts, together.false) == (sum(one.verdicts for one in each), sum(one.false for one in each))
    assert together.low < together.rate < together.high
    told = {**vars(together), "rule": "joinery", "scenario": NOTHING, "rate": 1e-5, "low": 0.0, "high": 1e-4}
    _plain_words([Figures(**told)])
    assert "tuned on: 0.7 (95 %: 0.0 to 7.3;" in capsys.readouterr().out
