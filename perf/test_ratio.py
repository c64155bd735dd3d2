"""Ratios: what is paired, what the interval says, and when nobody can tell."""

import random

import pytest

from perf import noise
from perf.ratio import Ratio, by_round, median_ns, paired, ratio


def row(times, copy=1, per_round=2):
    """A row whose samples are ``times`` milliseconds on the slower of two ranks, so many of them in a round."""
    samples = [[round(time * 1e6), round(time * 0.9e6)] for time in times]
    blocks = [number // per_round for number in range(len(times))]
    axes = {"subject": "impl", "copy": copy}
    return {"wall_ns": samples, "device_ns": [], "block": blocks, "status": "ok", "axes": axes, "derived": {}}


def noisy(mean, rounds, seed):
    generator = random.Random(seed)
    return row([generator.gauss(mean, 0.02 * mean) for _ in range(2 * rounds)])


def test_a_samples_time_is_the_slowest_ranks_and_a_round_has_one_median():
    one = row([3.0, 5.0, 7.0, 9.0])
    assert by_round(one) == {0: 4e6, 1: 8e6}
    assert median_ns(one) == 6e6


def test_on_a_device_the_events_count():
    one = row([3.0, 5.0]) | {"device_ns": [[7, 8], [9, 9]]}
    assert by_round(one) == {0: 8.5}


def test_a_slow_down_of_a_tenth_is_seen_and_none_is_not():
    for seed in range(5):
        assert ratio(noisy(11, 30, seed), noisy(10, 30, seed + 100)).said == "slower"
        assert ratio(noisy(9, 30, seed), noisy(10, 30, seed + 100)).said == "faster"
    none = [ratio(noisy(10, 30, seed), noisy(10, 30, seed + 100)) for seed in range(20)]
    assert sum(one.said in ("slower", "faster") for one in none) <= 4  # 1 in 20 by construction


def test_what_disturbs_both_cancels_because_rounds_are_paired():
    generator = random.Random(3)
    storms = [generator.choice([1, 1, 3]) for _ in range(20)]
    slow = {number: 1.1 * storm * generator.gauss(10, 0.01) for number, storm in enumerate(storms)}
    fast = {number: storm * generator.gauss(10, 0.01) for number, storm in enumerate(storms)}
    assert paired(slow, fast).said == "slower"


def test_few_rounds_tell_nothing():
    few = ratio(noisy(20, 4, 1), noisy(10, 4, 2))
    assert few.said == "not enough runs to tell"
    assert few.point == pytest.approx(2, rel=0.1)
    assert "[" not in str(few)


def test_an_interval_around_1_says_same_only_if_it_is_narrow():
    assert Ratio(1.0, 0.98, 1.03, 30).said == "same"
    assert Ratio(1.0, 0.8, 1.2, 30).said == "not enough runs to tell"


def test_rounds_that_only_one_has_do_not_count():
    assert paired({1: 2.0, 2: 4.0}, {2: 2.0, 3: 1.0}).point == 2
    assert paired({1: 2.0}, {2: 2.0}).rounds == 0


def test_a_difference_that_a_cell_shows_to_itself_too_is_noise():
    restless, calm = Ratio(0.8, 0.7, 0.9, 20), Ratio(1.0, 0.97, 1.02, 20)
    assert noise.figure(restless) == pytest.approx(1 / 0.7 - 1)
    assert noise.judged(Ratio(1.3, 1.2, 1.4, 20), restless) == "within the noise"
    assert noise.judged(Ratio(1.6, 1.5, 1.7, 20), restless) == "slower"
    assert noise.judged(Ratio(1.3, 1.2, 1.4, 20), calm) == noise.judged(Ratio(1.3, 1.2, 1.4, 20), None) == "slower"


def test_a_cell_against_itself_is_the_noise():
    first, twin = noisy(10, 20, 1), noisy(10.4, 20, 2)
    twin["axes"] = {**first["axes"], "copy": 2}
    told = noise.noted([first, twin])
    assert 0.01 < told[0]["derived"]["noise"] < 0.1
    assert told[0]["derived"]["noise_ratio"]["rounds"] == 20
    assert noise.figure(noise.of_group([first])) is None
