"""ZeRO's step and the overlapped step where every rank counts as a host of its own: what is gathered is as it was."""

import os
from contextlib import contextmanager

import pytest
import torch

import impl.zero.routes
from conformance.fixtures.observing import started
from impl.overlap.plan import windows

from .overlap_training import Net, batch, build, clear_gradients, loss_of
from .test_overlap_on_ranks import train_many, uneven
from .test_zero_on_ranks import storages, ten_steps
from .zero_training import parameters

pytestmark = pytest.mark.slow

SCHEDULES = [{"interleaved": interleaved, "shard": shard} for interleaved in (False, True) for shard in (False, True)]


@contextmanager
def apart(ctx):
    """Every rank is a host, and messages cost nothing beside their bytes, so that small models travel as large ones."""
    before, impl.zero.routes._HOP_BYTES = impl.zero.routes._HOP_BYTES, 0
    os.environ["JOINERY_HOSTID"] = f"host {ctx.rank}"
    try:
        yield
    finally:
        impl.zero.routes._HOP_BYTES = before
        del os.environ["JOINERY_HOSTID"]


def on_hosts(ctx, function, *args):
    with apart(ctx):
        return function(ctx, *args)


@pytest.mark.parametrize("world", [3, 4])
@pytest.mark.parametrize(
    "options", [{}, {"views": True, "unused": True}, {"several": True, "scheduled": True}], ids="-".join
)
def test_ten_steps_on_hosts_equal_the_ordinary_optimizer_bit_by_bit(run, options, world):
    assert run(on_hosts, ten_steps, options, world=world) == [{}] * world


def test_views_are_made_on_hosts_as_on_one(run):
    for kept, counts, wrong in run(on_hosts, storages, True, world=3):
        assert not kept
        assert counts == [1, 1, 1]
        assert wrong == []


TWEAKS = [
    {"views": True},
    {"static": True},
    {"unused": True, "zeros": True},
    {"several": True, "scheduled": True},
    {"reduce_scatter": True},
]


@pytest.mark.parametrize("world", [2, 3, 4])
@pytest.mark.parametrize("tweak", TWEAKS, ids=str)
def test_overlapped_steps_on_hosts_equal_one_process(run, tweak, world):
    variants = [{**options, **tweak} for options in SCHEDULES]
    assert run(on_hosts, train_many, 5, ["momentum", "adam"], variants, world=world) == [{}] * world


@pytest.mark.parametrize("options", SCHEDULES, ids=str)
def test_uneven_inputs_on_hosts_equal_one_process(run, options):
    schedules = [(1, 2, 4), (4, 2, 1), (0, 3, 0)]
    assert run(on_hosts, uneven, schedules, "adam", options, world=3) == [{}] * 3


@pytest.mark.parametrize("options", SCHEDULES, ids=str)
def test_uneven_inputs_on_two_hosts_equal_one_process(run, options):
    schedules = [(1, 4), (4, 1), (0, 3)]
    options = {**options, "reduce_scatter": True}
    assert run(on_hosts, uneven, schedules, "adam", options, world=2) == [{}] * 2


def one_owner(ctx, views, dtype):
    """Every rank's parameters are its number; after one owner's were sent, what is whose."""
    params = [parameter.detach().to(dtype) for parameter in parameters(6)]
    for parameter in params:
        parameter.requires_grad_().data.fill_(ctx.rank)
    zero = ctx.subject.ZeroRedundancyOptimizer(params, torch.optim.SGD, parameters_as_bucket_view=views, lr=0.5)
    zero._broadcast_params_from_rank(1)
    first = [set(parameter.detach().flatten().tolist()) for parameter in params]
    zero._sync_params()
    owners = zero.shard.plan.owners
    return first == [{1 if owner == 1 else ctx.rank} for owner in owners], [
        set(parameter.detach().flatten().tolist()) for parameter in params
    ] == [{owner} for owner in owners]


@pytest.mark.parametrize("views", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64], ids=str)
def test_one_owner_or_all_send_what_is_theirs(run, views, dtype):
    assert run(on_hosts, one_owner, views, dtype, world=3) == [(True, True)] * 3


def messages(ctx, options):
    """What carries gradients and parameters in an iteration, in order; and how many windows there are."""
    with apart(ctx):
        ddp, zero = build(ctx, Net(), "momentum", options)
        for number in range(5):
            clear_gradients(ddp, options)
            events = started(ctx, lambda number=number: loss_of(ddp(batch(ctx.rank, number), True)).backward())
            zero.step()
        found = windows(zero.overlap.info.assigned_ranks_per_bucket, ctx.world)
        return [(event.op, event.source, event.group) for event in events if event.dtype == "float32"], len(found)


@pytest.mark.parametrize("interleaved", [False, True], ids=["sequential", "interleaved"])
def test_between_two_hosts_each_rank_sends_over_a_group_of_its_own(gloo_cluster, interleaved):
    options = ({"interleaved": interleaved, "reduce_scatter": True, "cap": 0.00003},)
    (first, _), (second, _) = gloo_cluster.run(messages, options, world=2, subject="impl", trace=True).values()
    assert set(first) == set(second)
    assert {(op, source) for op, source, _ in first} == {("broadcast", 0), ("broadcast", 1)}
    assert len(set(first)) == 2 == len({group for _, _, group in first})


@pytest.mark.parametrize("shard", [False, True], ids=["whole buckets", "sharded"])
def test_on_hosts_all_buckets_are_gathered_at_once_or_window_by_window(gloo_cluster, shard):
    def found(interleaved):
        options = ({"interleaved": interleaved, "shard": shard, "cap": 0.00003},)
        return gloo_cluster.run(messages, options, world=3, subject="impl", trace=True).values()

    for (sequential, _), (interleaved, count) in zip(found(False), found(True), strict=True):
        at_once, by_window = ([op for op, _, _ in sent if op != "all_reduce"] for sent in (sequential, interleaved))
        assert at_once.count("all_gather_into_tensor") == 1
        assert by_window.count("all_gather_into_tensor") == count == 2
        assert {*at_once, *by_window} <= {"all_gather_into_tensor", "all_to_all_single"}
