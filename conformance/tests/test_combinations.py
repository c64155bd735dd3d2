"""The comparison of combinations with one process: to the bit, but where seven ranks share a mean."""

import torch

from conformance.fixtures.combinations import ROUNDS, same

WANTED = {"weight": [840.0, -1680.0, 120.0], "bias": [3.0], "unused": None}


def test_multiplying_by_the_reciprocal_rounds_a_whole_quotient_only_by_seven():
    quotients = torch.arange(1.0, 20000.0)
    rounds = [n for n in range(1, 9) if not torch.equal((n * quotients) * (torch.tensor(1.0) / n), quotients)]
    assert rounds == [ROUNDS]


def test_a_last_bit_is_open_only_where_it_is_said_to_be():
    rounded = {**WANTED, "weight": [840.0 * (1 + 2**-23), -1680.0, 120.0]}
    assert same(rounded, WANTED, exactly=False)
    assert not same(rounded, WANTED, exactly=True)
    assert same(WANTED, WANTED, exactly=True)


def test_what_is_no_rounding_is_never_the_same():
    eighths = {name: row and [number * 7 / 8 for number in row] for name, row in WANTED.items()}
    for wrong in (
        eighths,
        {**WANTED, "unused": [0.0]},
        {**WANTED, "bias": None},
        {**WANTED, "bias": [4.0]},
        {**WANTED, "weight": [840.0, -1680.0, float("nan")]},
        {"weight": WANTED["weight"]},
    ):
        assert not same(wrong, WANTED, exactly=False), wrong
