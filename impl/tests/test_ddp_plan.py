"""Bucket plans: pure values that hold each parameter once, in order, within their caps."""

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from impl.ddp.plan import MIB, BucketCaps, BucketPlan, BucketSpec, ParameterSpec, Slot, first_plan, plan_buckets

CPU = torch.device("cpu")
DTYPES = (torch.float32, torch.float64, torch.bfloat16)


def spec(index: int, numel: int, dtype: torch.dtype = torch.float32, sparse: bool = False) -> ParameterSpec:
    return ParameterSpec(index, f"p{index}", numel, dtype, CPU, sparse)


@st.composite
def models(draw: st.DrawFn) -> list[ParameterSpec]:
    sizes = draw(st.lists(st.integers(1, 300), min_size=1, max_size=30))
    return [spec(i, n, draw(st.sampled_from(DTYPES)), draw(st.integers(0, 9)) == 0) for i, n in enumerate(sizes)]


@given(models(), st.randoms(use_true_random=False), st.lists(st.integers(1, 2000), min_size=1, max_size=3))
def test_every_parameter_has_one_place_whatever_the_order_and_the_caps(specs, random, caps):
    order = list(range(len(specs)))
    random.shuffle(order)
    plan = plan_buckets(specs, order, BucketCaps(tuple(caps)))
    assert sorted(i for bucket in plan.buckets for i in bucket.parameters) == list(range(len(specs)))
    for bucket in plan.buckets:
        members = [specs[i] for i in bucket.parameters]
        assert {m.dtype for m in members} == {bucket.dtype}
        assert bucket.numel == sum(m.numel for m in members)
        assert [order.index(i) for i in bucket.parameters] == sorted(order.index(i) for i in bucket.parameters)


@given(models(), st.integers(1, 2000))
def test_a_bucket_closes_with_the_parameter_that_fills_it(specs, cap):
    for bucket in plan_buckets(specs, range(len(specs)), BucketCaps((cap,))).buckets:
        without_last = [specs[i].bytes for i in bucket.parameters[:-1]]
        assert sum(without_last) < cap


@given(models())
def test_sparse_gradients_travel_alone(specs):
    for bucket in plan_buckets(specs, range(len(specs)), BucketCaps()).buckets:
        assert bucket.sparse == specs[bucket.parameters[0]].sparse
        assert not bucket.sparse or len(bucket.parameters) == 1


def test_reduction_begins_with_the_parameters_registered_last():
    plan = first_plan([spec(i, 16) for i in range(4)], BucketCaps((2 * 16 * 4,)), will_be_rebuilt=False)
    assert [bucket.parameters for bucket in plan.buckets] == [(2, 3), (0, 1)]


@given(models(), st.lists(st.integers(1, 10**5), min_size=1, max_size=3))
def test_a_plan_that_stays_is_laid_out_as_torch_lays_it_out(specs, sizes):
    tensors = [torch.empty(spec.numel, dtype=spec.dtype, device="meta") for spec in specs]
    theirs, _ = dist._compute_bucket_assignment_by_size(tensors, sizes, [spec.sparse for spec in specs])
    ours = first_plan(specs, BucketCaps(tuple(sizes)), will_be_rebuilt=False)
    assert [list(bucket.parameters) for bucket in ours.buckets] == list(reversed(theirs))


def test_before_a_rebuild_one_bucket_holds_everything_of_a_dtype():
    specs = [spec(0, 10**6), spec(1, 10**6, torch.float64), spec(2, 10**6)]
    plan = first_plan(specs, BucketCaps(), will_be_rebuilt=True)
    assert [bucket.parameters for bucket in plan.buckets] == [(2, 0), (1,)]


def test_the_first_bucket_is_smaller_by_default():
    plan = plan_buckets([spec(i, MIB // 4) for i in range(30)], range(30), BucketCaps.of())
    assert [len(bucket.parameters) for bucket in plan.buckets] == [1, 25, 4]


def test_a_size_given_by_the_user_holds_for_the_first_bucket_too():
    assert BucketCaps.of(3) == BucketCaps((3 * MIB,))
    assert BucketCaps.of(None, [1, 2]).of_bucket(7) == 2 * MIB


def test_parameters_left_out_are_remembered():
    plan = plan_buckets([spec(i, 4) for i in range(3)], [2, 0], BucketCaps())
    assert plan.left_out == {1}
    assert plan.order == [2, 0]


@pytest.mark.parametrize(
    "slots",
    [
        pytest.param(((Slot(0, "", 0, 4), Slot(1, "", 5, 4)),), id="a gap"),
        pytest.param(((Slot(0, "", 0, 4), Slot(1, "", 3, 4)),), id="an overlap"),
        pytest.param(((Slot(0, "", 2, 4), Slot(1, "", 6, 4)),), id="a late beginning"),
        pytest.param(((Slot(0, "", 0, 4),), (Slot(0, "", 0, 4),)), id="one twice"),
        pytest.param(((Slot(0, "", 0, 4),),), id="one missing"),
    ],
)
def test_a_plan_that_is_wrong_cannot_be_made(slots):
    buckets = tuple(BucketSpec(i, s, torch.float32, CPU, sparse=False) for i, s in enumerate(slots))
    with pytest.raises(AssertionError):
        BucketPlan(buckets, 2)
