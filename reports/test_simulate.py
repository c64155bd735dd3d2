"""The simulated year is what it says, and the figures made from it count what they say."""

import numpy as np
import pytest

from reports.judging import DEFAULT
from reports.simulate.power import figures
from reports.simulate.replay import change_points, replay, threshold
from reports.simulate.year import World, year

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
