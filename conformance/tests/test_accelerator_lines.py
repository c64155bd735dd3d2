"""The lines that only a GPU reaches, run once on ranks whose device calls itself one: no typing error is left to it."""

import contextlib
import dataclasses
from unittest import mock

import pytest
import torch
import torch.distributed as dist

from conformance.accelerator import delays, failures, memory, streams
from conformance.ranks import Cluster

pytestmark = pytest.mark.slow

CALLS = ("synchronize", "memory_allocated", "max_memory_allocated", "reset_peak_memory_stats", "Stream",
         "current_stream", "stream", "_sleep")  # fmt: skip


class Pretended(str):
    """A device for torch, which reads ``cpu``, and a GPU for whoever looks at its type."""

    type = "cuda"


@contextlib.contextmanager
def pretended(ctx):
    """The context with such a device, and torch's calls replaced by mocks that take the same arguments."""
    with contextlib.ExitStack() as stack:
        seen = {}
        for name in CALLS:
            seen[name] = stack.enter_context(mock.patch.object(torch.cuda, name, autospec=True))
        seen["memory_allocated"].return_value = seen["max_memory_allocated"].return_value = 2**20
        seen["stream"].side_effect = lambda _: contextlib.nullcontext()
        yield dataclasses.replace(ctx, device=Pretended("cpu")), seen


def remembered(ctx):
    with pretended(ctx) as (on_gpu, seen):
        return memory.peaks(on_gpu), memory.left_behind(on_gpu), seen["synchronize"].call_count


def delayed(ctx, case):
    with pretended(ctx) as (on_gpu, seen):
        in_time = streams.trained(on_gpu, case, delays.IN_TIME)
        assert not seen["_sleep"].call_count
        slept, found = [], []
        for late in (delays.GRADIENTS, delays.COLLECTIVES):
            found.append(streams.trained(on_gpu, case, late) == in_time)
            slept.append(seen["_sleep"].call_count)
    return found, slept


def looked_at(ctx):
    events = [{"cat": "kernel", "name": "ncclDevKernel_AllReduce", "args": {"stream": 20}}]
    with pretended(ctx) as (on_gpu, _):
        with mock.patch.object(streams, "_events", autospec=True, return_value=events):
            seen = streams.profiled(on_gpu, streams.CASES[0])
        return seen, len(streams._events(lambda _: torch.ones(1) + 1, accelerated=True))


def aborted(ctx):
    with pretended(ctx) as (on_gpu, _):
        with mock.patch.object(dist.distributed_c10d, "_abort_process_group", autospec=True) as abort:
            found = failures.aborting(on_gpu)
        return found, abort.call_count


@pytest.fixture(scope="module")
def ranks():
    with Cluster(deadline_s=120, stall_s=60, preload=["conformance.fixtures.overlapping"]) as cluster:
        yield cluster


def test_memory(ranks):
    peaks, (few, many), rests = ranks.run(remembered, world=1, subject="impl").values()[0]
    assert peaks == {"making DDP": 0.0, "the first two iterations": 0.0, "a later iteration": 0.0}
    assert few == many == 2**20
    assert rests == 3


@pytest.mark.parametrize("case", streams.CASES, ids=lambda case: case.name)
def test_streams(case, ranks):
    for same, (after_gradients, after_collectives) in ranks.run(
        delayed, (case,), world=2, subject="impl", trace=True
    ).values():
        assert same == [True, True]
        assert 0 < after_gradients < after_collectives


def test_the_profilers_view(ranks):
    for seen, events in ranks.run(looked_at, world=2, subject="impl").values():
        assert seen["sending"] == 1.0
        assert events


def test_a_rank_that_raises_under_a_device_that_runs_ahead(ranks):
    run = ranks.run(raising, world=2, subject="impl", group_timeout_s=failures._TIMEOUT_S)
    assert {one.state for one in failures._named(run)} == {"held", "figure"}


def raising(ctx):
    with pretended(ctx) as (on_gpu, seen):
        found = failures.raising(on_gpu)
        assert seen["synchronize"].call_count >= failures._AT
        return found


def test_an_abort(ranks):
    (first, aborts), (second, none) = ranks.run(aborted, world=2, subject="impl", group_timeout_s=20).values()
    assert (aborts, none) == (1, 0)
    assert first[1] == second[1] == 2.0
