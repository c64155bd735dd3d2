"""Poison changes no result of who waits, and shows who reads a result too early or writes into a buffer in flight."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn

from conformance.engine.request import Asked
from conformance.fixtures import models
from conformance.fixtures.training import gradients
from conformance.ranks import Cluster, Raised
from conformance.ranks.poison import Flight, PoisonedWork

from . import fakes

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def poisoned():
    with Cluster(deadline_s=60.0, poison=True) as made:
        yield made


@pytest.fixture(scope="module")
def plain():
    with Cluster(deadline_s=60.0) as made:
        yield made


def run(cluster, function, *args, subject="torch", **options):
    return cluster.run(function, args, world=2, subject=subject, **options)


def every_result(ctx):
    """What every collective leaves, waited for by its handle and by its future."""
    world, rank = ctx.world, ctx.rank
    x = torch.arange(4.0).view(2, 2) + rank
    told = []

    def note(*tensors):
        told.append([tensor.tolist() for tensor in tensors])

    def parts():
        return [x + number for number in range(world)]

    def empty():
        return [torch.zeros(2, 2) for _ in range(world)]

    for buffer in (x.clone(), x.int(), x.bfloat16(), x.t().clone()):
        dist.all_reduce(buffer)
        note(buffer)
    for buffer in (x.clone(), x.to(torch.uint8)):
        dist.broadcast(buffer, src=1)
        note(buffer)
    buffer = x.clone()
    dist.reduce(buffer, dst=1)
    if rank == 1:  # what it leaves elsewhere is nobody's business
        note(buffer)
    held, whole = empty(), torch.zeros(2 * world, 2)
    dist.all_gather(held, x)
    dist.all_gather_into_tensor(whole, x)
    note(*held, whole)
    held = empty()
    dist.gather(x, held if rank == 0 else None, dst=0)
    got = torch.zeros(2, 2)
    dist.scatter(got, parts() if rank == 1 else None, src=1)
    note(*held, got)
    dist.send(x, dst=1) if rank == 0 else dist.recv(got, src=0)
    note(got)
    buffer = x.clone()
    future = dist.all_reduce(buffer, async_op=True).get_future().then(lambda done: done.value()[0] / world)
    note(future.wait(), buffer)
    sparse = torch.sparse_coo_tensor([[rank]], [1.0], (world,))
    dist.all_reduce(sparse)
    note(sparse.to_dense())
    dist.barrier()
    return told


@pytest.mark.parametrize("trace", [False, True])
def test_whoever_waits_gets_the_same_results(poisoned, plain, trace):
    assert run(poisoned, every_result, trace=trace).values() == run(plain, every_result, trace=trace).values()


def read_early(ctx):
    x = torch.ones(3)
    work = dist.all_reduce(x, async_op=True)
    early = x.tolist()
    work.wait()
    return early, x.tolist()


def test_a_result_that_is_read_before_the_wait_is_poison(poisoned):
    for early, late in run(poisoned, read_early).values():
        assert all(number != number for number in early)
        assert late == [2.0] * 3


def write_early(ctx, act, source):
    x, other = torch.ones(3), torch.ones(3)
    work = dist.all_reduce(x, async_op=True) if source is None else dist.broadcast(x, src=source, async_op=True)
    acts = {"add": lambda: x.add_(1), "write": lambda: x[1:].zero_(), "read": x.sum, "beside": lambda: other.add_(1)}
    if ctx.rank == 0:
        acts[act]()
    work.wait()
    return x.tolist()


@pytest.mark.parametrize("source", [None, 0, 1])
@pytest.mark.parametrize(("act", "noticed"), [("add", True), ("write", True), ("read", False), ("beside", False)])
def test_a_write_into_a_buffer_in_flight_is_noticed_and_nothing_else(poisoned, act, noticed, source):
    ends = run(poisoned, write_early, act, source).outcomes
    if act == "add" and source != 0:  # NaN and one more is NaN: harmless, and not to be seen
        noticed = False
    assert isinstance(ends[0], Raised) == noticed
    assert not isinstance(ends[1], Raised)
    if noticed:
        assert "written to between start and wait: the buffer of" in ends[0].error.text
        assert not ends[0].fell_over


def train(ctx, careless):
    """Gradients of three iterations; ``careless``: the implementation takes what a bucket holds without waiting."""
    if careless == "reads":
        from impl.comm.pending import Pending

        Pending.wait = lambda self, watch=None: self.buffer
    if careless == "writes":
        from impl.comm import collectives

        honest = collectives.all_reduce

        def eager(team, buffer, label, op=dist.ReduceOp.SUM):
            pending = honest(team, buffer, label, op)
            if buffer.is_floating_point():
                buffer[:1].zero_()
            return pending

        from impl.ddp import reduction as transport

        transport.all_reduce = collectives.all_reduce = eager
    torch.manual_seed(0)
    model = ctx.subject.DistributedDataParallel(nn.Sequential(models.Sum(4), nn.BatchNorm1d(4)), bucket_cap_mb=1e-4)
    told = []
    for iteration in range(3):
        model.zero_grad()
        model(models.divisible(ctx.rank, iteration)).sum().backward()
        told.append(gradients(model))
    return told


@pytest.mark.parametrize("subject", ["impl", "torch"])
def test_training_under_poison_gives_the_same_bits(poisoned, plain, subject):
    seen = run(poisoned, train, "", subject=subject).values()
    assert repr(seen) == repr(run(plain, train, "", subject=subject).values())
    assert "nan" not in repr(seen)


class Ended:
    """A handle of torch 2.11, which cannot hand its exception to Python."""

    def is_completed(self):
        return True

    def wait(self):
        return True

    def exception(self):
        raise TypeError("Unable to convert function return value to a Python type!")


def test_who_sees_that_a_collective_has_ended_gets_its_result():
    buffer, flight = torch.ones(2), Flight("all_reduce")
    flight.boarded([buffer], "both")
    flight.take_off()
    assert buffer.isnan().all()
    assert PoisonedWork(Ended(), flight).is_completed()
    assert buffer.tolist() == [1.0, 1.0]


def test_an_implementation_that_does_not_wait_for_its_buckets_is_caught(poisoned):
    assert "nan" in repr(run(poisoned, train, "reads", subject="impl").outcomes)


def test_an_implementation_that_writes_into_its_buckets_in_flight_is_caught(poisoned):
    for end in run(poisoned, train, "writes", subject="impl").outcomes:
        assert isinstance(end, Raised)
        assert "written to between start and wait: the buffer of all_reduce" in end.error.text


def test_the_command_that_runs_a_break_again_is_poisoned_as_well():
    asked = Asked({"impl": "impl"}, {"impl": "1"}, "gloo", (2,), ("*",), poison=True)
    assert asked.again("impl", [2], "DDP-049", "test_a").endswith("--poison")


@pytest.mark.long
def test_a_poisoned_run_says_so(tmp_path):
    fakes.lay(tmp_path)
    words = ("--subject", "fake_subject:subject", "--select", "FAKE-001", "--worlds", "2", "--poison")
    status, out, err = fakes.run(tmp_path, *words)
    assert status == 0, err
    assert "buffers in flight poisoned" in out
