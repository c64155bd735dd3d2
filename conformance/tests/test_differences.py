"""What a failed comparison says: the one ratio of all differing numbers, or the worst; in the witness, too."""

from dataclasses import dataclass

import pytest
import torch

from conformance.api.checking import Check
from conformance.api.differences import assert_same, difference
from conformance.engine.verdict import judge
from conformance.fixtures.combinations import _assert_same
from conformance.subjects import Subject, Unsupported


@dataclass(frozen=True)
class Trained:
    steps: int
    weights: list[float]


def test_numbers_that_differ_by_one_ratio_are_told_by_it_alone():
    expected = {"weight": [6.0, 0.0, -12.0], "bias": [3.0]}
    got = {"weight": [4.0, 0.0, -8.0], "bias": [2.0]}
    assert difference(got, expected) == "weight[0]: got 4, expected 6, ratio 0.667 (in all 3 that differ)"


def test_other_numbers_are_told_by_the_worst():
    got, expected = [[1.0, 2.0], [3.0, 4.0]], [[1.0, 2.5], [3.0, 0.0]]
    assert difference(got, expected) == "[1][1]: got 4, expected 0, gap 4 (the worst of 2 that differ)"


@pytest.mark.parametrize(
    ("got", "expected", "told"),
    [
        (12.0, 18.0, "got 12, expected 18, ratio 0.667"),
        ([1.0], [1.0], ""),
        ([0.0], [-0.0], ""),
        ([float("nan")], [1.0], "[0]: got nan, expected 1, gap inf"),
        ({"a": None}, {"a": [1.0]}, "a: got None, expected [1.0]"),
        ([1.0], [1.0, 2.0], "got [1.0], expected [1.0, 2.0]"),
        ([None, "w: got 1, expected 2"], [None, None], "[1]: w: got 1, expected 2"),
        ({"a": 1}, {"b": 1}, "got ['a'], expected ['b']"),
        ([True], [False], "[0]: got True, expected False"),
        (1 + 2j, 2 + 4j, "got 1+2j, expected 2+4j, gap 2.24"),
        (Trained(2, [1.0]), Trained(2, [2.0]), "weights[0]: got 1, expected 2, ratio 0.5"),
        (torch.tensor([[1.0, 5.0]]), torch.tensor([[1.0, 2.0]]), "[0][1]: got 5, expected 2, ratio 2.5"),
        (torch.zeros(2), torch.zeros(3), "got 'torch.float32 (2,)', expected 'torch.float32 (3,)'"),
    ],
)
def test_every_kind_of_value_is_compared_down_to_its_numbers(got, expected, told):
    assert difference(got, expected) == told


def test_the_helper_says_where_and_what():
    assert_same([1.0], [1.0], "rank 0")
    with pytest.raises(AssertionError, match=r"^rank 0: \[0\]: got 1, expected 3, ratio 0.333$"):
        assert_same([1.0], [3.0], "rank 0")


def test_combinations_say_what_differs_where_rounding_does_not_explain_it():
    _assert_same({"w": [1.0 + 2**-22]}, {"w": [1.0]}, "rank 0", exactly=False)
    with pytest.raises(AssertionError, match=r"rank 0: w\[0\]: got 2, expected 3, ratio 0.667"):
        _assert_same({"w": [2.0]}, {"w": [3.0]}, "rank 0", exactly=False)


LINES = "assert [4.0] == [6.0]\n  in numbers: [0]: got 4, expected 6, ratio 0.667\n  At index 0 diff: 4.0 != 6.0"


@pytest.mark.parametrize(
    ("text", "witness"),
    [
        (f"rank 0, iteration 1\n{LINES}", "rank 0, iteration 1: [0]: got 4, expected 6, ratio 0.667"),
        (LINES, "assert [4.0] == [6.0]: [0]: got 4, expected 6, ratio 0.667"),
        ("assert 2 == 3\n  in numbers: got 2, expected 3, ratio 0.667", "assert 2 == 3"),
        ("rank 0\nassert 'a' in 'b'", "rank 0"),
    ],
)
def test_a_witness_is_the_label_and_what_differs(text, witness):
    assert judge(AssertionError(text)).witness == witness


# -- names that a clause's area is about


def broken(*_, **__):
    raise RuntimeError("this constructor always fails")


def test_a_clause_about_names_that_a_subject_lacks_is_unsupported_before_anything_is_built():
    subject = Subject("mine", "1", {"DistributedDataParallel": broken}, {"ZeroRedundancyOptimizer": "we do not shard"})
    for clauses in (("ZERO-008",), ("HOOK-001",), ("ZERO-032", "HOOK-047")):
        with pytest.raises(Unsupported, match="we do not shard"):
            Check(clauses, (2,), (), None).ask_for_names(subject)
    for clauses in (("DDP-049",), ("DDPJ-014", "HOOK-010"), ("JOIN-001",)):
        Check(clauses, (2,), (), None).ask_for_names(subject)


def test_one_of_the_factories_of_hooks_is_enough():
    names = dict.fromkeys(("DistributedDataParallel", "ZeroRedundancyOptimizer"), broken)
    with pytest.raises(Unsupported, match="hook_with_zero_step"):
        Check(("HOOK-001",), (2,), (), None).ask_for_names(Subject("mine", "1", names))
    one = Subject("mine", "1", {**names, "hook_with_zero_step_interleaved": broken})
    Check(("HOOK-001",), (2,), (), None).ask_for_names(one)
