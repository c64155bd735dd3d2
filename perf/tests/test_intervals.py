"""Intervals of medians, of differences and of two runs."""

import random

import numpy
import pytest

from perf.analyse.intervals import apart, of_difference, of_median

pytestmark = pytest.mark.slow

DRAWS = 2000


def around(mean, count, seed):
    generator = random.Random(seed)
    return [generator.gauss(mean, 0.02 * mean) for _ in range(count)]


def test_few_rounds_have_no_interval():
    few = of_median(dict(enumerate([1.0, 2.0, 3.0])))
    assert few.point == 2
    assert not few.known
    assert not of_median({}).known


def test_an_interval_holds_its_point_and_narrows_with_rounds():
    short, long = (of_median(dict(enumerate(around(10, count, 1)))) for count in (8, 80))
    assert short.low <= short.point <= short.high
    assert long.high - long.low < short.high - short.low


def test_differences_are_taken_round_by_round():
    storm = [1.0, 50.0, 3.0, 90.0, 2.0, 70.0, 4.0]
    first = {number: disturbance + 2 for number, disturbance in enumerate(storm)}
    found = of_difference(first, dict(enumerate(storm)))
    assert (found.point, found.low, found.high) == (2, 2, 2)
    assert of_difference(first, {0: 1.0}).rounds == 1


def test_two_runs_apart_by_a_tenth_are_told_apart_and_two_alike_are_not():
    assert all(apart(around(11, 20, seed), around(10, 20, seed + 50)).said == "slower" for seed in range(5))
    alike = [apart(around(10, 20, seed), around(10, 20, seed + 50)).said for seed in range(20)]
    assert sum(said in ("slower", "faster") for said in alike) <= 4  # 1 in 20 by construction


@pytest.mark.parametrize("rounds", [6, 8, 12, 20, 30])
def test_intervals_of_a_median_and_of_two_series_hold_the_truth_as_often_as_they_say(rounds):
    one, other = (numpy.exp(numpy.random.default_rng(seed).normal(0, 0.1, (DRAWS, rounds))) for seed in (1, 2))
    medians = [of_median(dict(enumerate(values))) for values in one]
    assert sum(not each.low <= 1 <= each.high for each in medians if each.known) <= 0.055 * DRAWS
    two = [apart(first.tolist(), second.tolist()) for first, second in zip(one[::4], other[::4], strict=True)]
    assert sum(not each.low <= 1 <= each.high for each in two if each.known) <= 0.06 * len(two)
