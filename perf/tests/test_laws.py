"""Laws of growth: known ones are found with their coefficients, noise does not grow, departures are seen."""

import math
import random

import pytest

from perf.analyse.growth.laws import LINEAR, LOG, NONE, POWER, Point, best, departs, fits, said

RANKS, PARAMETERS, BUCKETS = range(1, 9), (25, 50, 100, 200, 400, 800, 1600), (1, 2, 4, 8, 16, 32)


def points(law, xs, noise=0.02, seed=1, errors=0.02):
    generator = random.Random(seed)
    return [Point(x, law(x) * generator.gauss(1, noise), errors * abs(law(x))) for x in xs]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    ("kind", "law", "xs", "truth"),
    [
        (NONE, lambda x: 7.0, RANKS, (7.0,)),
        (LINEAR, lambda x: 1 + 0.5 * x, RANKS, (1, 0.5)),
        (LINEAR, lambda x: 1 + 0.01 * x, PARAMETERS, (1, 0.01)),
        (LINEAR, lambda x: 2 + 0.1 * x, BUCKETS, (2, 0.1)),
        (LOG, lambda x: 1 + 2 * math.log(x), RANKS, (1, 2)),
        (POWER, lambda x: 1 + 0.1 * x**2, RANKS, (1, 0.1, 2)),
    ],
)
def test_a_known_law_is_found_with_its_coefficients(kind, law, xs, truth, seed):
    fit = best(points(law, xs, seed=seed, noise=0.01))
    assert fit.kind == kind
    for value, true, (low, high) in zip(fit.values, truth, fit.intervals, strict=True):
        assert low < value < high
        assert low - 0.1 * abs(true) <= true <= high + 0.1 * abs(true)


@pytest.mark.parametrize(("noise", "errors"), [(0.02, 0.02), (0.10, 0.10), (0.10, 0.04)])
@pytest.mark.parametrize("xs", [RANKS, BUCKETS, (0, 25, 50, 75, 100)])
def test_noise_alone_does_not_grow(noise, errors, xs):
    found = [best(points(lambda x: 5.0, xs, noise, seed, errors)).kind for seed in range(40)]
    assert found.count(NONE) >= 37  # with errors that are told too small a few go astray


def test_a_point_whose_few_rounds_agree_by_luck_does_not_decide_the_law():
    lucky = [Point(x, 8 + x, 0.5 if x != 1 else 1e-6) for x in BUCKETS]
    fit = best(lucky)
    assert fit.kind == LINEAR
    assert fit.values == pytest.approx((8, 1), abs=0.1)


def test_an_added_time_is_as_uncertain_as_the_times_whose_difference_it_is():
    scattered = [Point(x, (-1) ** x * 0.5, 0.6 if x % 3 else 1e-6, level=10.0 * x) for x in RANKS]
    assert best(scattered).kind == NONE


def test_points_of_hardly_any_rounds_say_nothing():
    assert said(points(lambda x: 8 + x, BUCKETS, errors=0.3), LINEAR) == "cannot tell: too few rounds"


def test_two_points_decide_no_law():
    assert best(points(lambda x: x, (1, 2))) is None
    assert said(points(lambda x: x, (1, 2)), LINEAR) == "too few points"


@pytest.mark.parametrize(
    ("law", "expected", "words"),
    [
        (lambda x: 1 + 0.5 * x, LINEAR, "as expected"),
        (lambda x: 3.0, NONE, "as expected"),
        (lambda x: 3.0, LINEAR, "does not grow"),
        (lambda x: 1 + 2 * math.log(x), LINEAR, "grows slower than expected"),
        (lambda x: 9 - x, NONE, "falls"),
        (lambda x: 1 + 0.1 * x**2, LINEAR, "grows faster than expected, from 4 on"),
        (lambda x: 1 + 0.5 * x, NONE, "grows faster than expected, from 3 on"),
        (lambda x: 5.0 if x < 6 else 5.0 + 3 * (x - 5), NONE, "grows faster than expected, from 6 on"),
    ],
)
def test_growth_is_held_against_what_it_should_be(law, expected, words):
    assert said(points(law, RANKS, noise=0.0), expected) == words


def test_a_series_that_keeps_its_law_departs_nowhere():
    assert departs(points(lambda x: 1 + 0.5 * x, RANKS, noise=0.01), LINEAR) is None


def test_where_x_begins_at_nothing_there_is_no_logarithm():
    assert best(points(lambda x: 1 + 0.01 * x, (0, 20, 40, 60, 80, 100))).kind == LINEAR


def test_a_constant_is_not_the_law_of_few_points_that_fall_steeply():
    points = [Point(x, y, 0.04 * y) for x, y in zip([0, 25, 50, 75, 100], [85, 76, 63, 48, 24], strict=True)]
    assert said(points, NONE) == "falls"
    assert fits(points)[-1].kind == NONE
