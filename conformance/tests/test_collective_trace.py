"""The collective trace sees every collective, those of C++ callers too, and changes nothing."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from conformance.ranks import Cluster, Died
from conformance.ranks.collective_trace import read

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cluster():
    with Cluster(deadline_s=20.0, stall_s=1.5, persistent=True) as made:
        yield made


def record(cluster, function, *args, world=2, **options):
    return cluster.run(function, args, world=world, subject="torch", trace=True, **options)


def told(events):
    return [str(event) for event in events]


def every_collective(ctx):
    world, rank, x = ctx.world, ctx.rank, torch.ones(2, 2)
    parts = [torch.ones(2, 2) for _ in range(world)]
    empty = [torch.zeros(2, 2) for _ in range(world)]
    dist.all_reduce(x, op=dist.ReduceOp.MAX)
    dist.all_reduce(x.int(), op=dist.ReduceOp.SUM)
    dist.broadcast(x, src=1)
    dist.all_gather(empty, x)
    dist.all_gather_into_tensor(torch.zeros(2 * world, 2), x)
    dist.reduce_scatter(torch.zeros(2, 2), parts, op=dist.ReduceOp.SUM)
    dist.reduce_scatter_tensor(torch.zeros(1, 2), torch.ones(world, 2))
    dist.reduce(x, dst=1, op=dist.ReduceOp.MIN)
    dist.gather(x, empty if rank == 0 else None, dst=0)
    dist.scatter(torch.zeros(2, 2), parts if rank == 1 else None, src=1)
    dist.all_to_all_single(torch.zeros(world), torch.ones(world))
    dist.all_to_all(empty, parts)
    if rank == 0:
        dist.send(x, dst=1)
    else:
        dist.recv(x, src=0)
    dist.barrier()
    return told(ctx.trace())


EVERY = [
    "all_reduce MAX float32 (2, 2)",
    "all_reduce SUM int32 (2, 2)",
    "broadcast float32 (2, 2) from 1",
    "all_gather float32 (2, 2)",
    "all_gather_into_tensor float32 (2, 2)",
    "reduce_scatter SUM float32 (2, 2)",
    "reduce_scatter_tensor SUM float32 (1, 2)",
    "reduce MIN float32 (2, 2) to 1",
    "gather float32 (2, 2) to 0",
    "scatter float32 (2, 2) from 1",
    "all_to_all_single float32 (2,)",
    "all_to_all float32 (8,)",
]


def test_every_collective_is_noted_in_order_with_its_facts(cluster):
    seen = record(cluster, every_collective)
    ends = [["send float32 (2, 2) to 1", "barrier"], ["recv float32 (2, 2) from 0", "barrier"]]
    assert seen.values() == [EVERY + ends[0], EVERY + ends[1]]
    assert [told(trace) for trace in seen.traces()] == seen.values()
    events = [event for trace in seen.traces() for event in trace]
    assert all(event.done and event.group == "default" and event.ranks == (0, 1) for event in events)
    assert {event.thread for event in events} == {"MainThread"}
    assert not seen.notes

def train_compiled(ctx):
    module = torch.nn.Linear(1, 1)
    module.register_buffer("steps", torch.zeros(1))
    model = DistributedDataParallel(module)
    model.compile(backend="eager")
    for _ in range(2):
        model(torch.ones(1, 1)).sum().backward()
    return [event.op for event in ctx.trace()].count("broadcast")


def test_a_compiled_model_sends_its_buffers_through_a_recorded_group(cluster):
    sent = record(cluster, train_compiled, deadline_s=60.0).values()
    assert min(sent) >= 3, "module state at construction, buffers in each forward"


def train_with_ddp(ctx):
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4)))
    before = len(ctx.trace())
    for step in range(2):
        model(torch.full((2, 3), float(ctx.rank + step))).sum().backward()
    parameters = [p.grad.tolist() for p in model.parameters()]
    return told(ctx.trace()[before:]), parameters


def test_the_all_reduces_of_ddps_cpp_reducer_are_seen(cluster):
    seen = [value[0] for value in record(cluster, train_with_ddp).values()]
    buffers = ["broadcast float32 (8,) from 0", "broadcast int64 (1,) from 0"]
    first_iteration = seen[0][: seen[0].index("all_reduce SUM float32 (24,)") + 1]
    assert first_iteration == [*buffers, "all_reduce SUM float32 (24,)"]
    assert seen[0] == seen[1]
    assert seen[0].count("all_reduce SUM float32 (24,)") == 2


def gradients(ctx):
    return train_with_ddp(ctx)[1]


def test_recording_changes_no_bit(cluster):
    recorded = record(cluster, gradients).values()
    assert recorded == cluster.run(gradients, (), world=2, subject="torch").values()


def work_in_subgroups(ctx):
    mine = dist.new_group([1, 2])
    if ctx.rank in (1, 2):
        dist.broadcast(torch.zeros(3), src=2, group=mine)
        explicit = dist.new_group([1, 2], backend="gloo", use_local_synchronization=True)
        dist.all_reduce(torch.zeros(4), group=explicit)
    return dist.get_backend(), sorted(str(device) for device in ctx.group._device_types)


def test_subgroups_are_seen_with_group_ranks_and_members_and_the_backend_keeps_its_name(cluster):
    seen = record(cluster, work_in_subgroups, world=3)
    assert seen.values() == cluster.run(work_in_subgroups, (), world=3, subject="torch").values()
    assert seen.values()[0][0] == "gloo"
    empty, first, second = seen.traces()
    assert told(event for event in empty if event.group != "default") == []
    subgroup = [event for event in first if event.ranks == (1, 2)]
    assert told(subgroup) == ["broadcast float32 (3,) from 1", "all_reduce SUM float32 (4,)"]  # group rank 1 is rank 2
    assert len({event.group for event in subgroup} - {"default"}) == 2
    assert told(second) == told(first)


def use_handles(ctx):
    x = torch.full((3,), float(ctx.rank + 1))
    work = dist.all_reduce(x, async_op=True)
    kind = type(work).__name__
    future = work.get_future().then(lambda done: done.value()[0].sum().item())
    work.wait()
    return kind, future.wait(), work.is_completed(), [t.tolist() for t in work.result()]


def test_handles_and_futures_are_the_real_groups_own(cluster):
    plain = cluster.run(use_handles, (), world=2, subject="torch").values()
    assert plain == record(cluster, use_handles).values()
    assert plain == [("Work", 9.0, True, [[3.0, 3.0, 3.0]])] * 2


def start_without_waiting(ctx):
    if ctx.rank == 0:
        dist.all_reduce(torch.ones(1), async_op=True)
        ctx.meet("started")
        done = [event.done for event in ctx.trace()]
        ctx.meet("looked")
        return done
    ctx.meet("started")
    ctx.meet("looked")
    dist.all_reduce(torch.ones(1))
    return [event.done for event in ctx.trace()]


def test_what_has_not_ended_is_not_noted_as_done(cluster):
    assert record(cluster, start_without_waiting).values()[0] == [False]


def die_in_the_middle(ctx):
    dist.all_reduce(torch.ones(1))
    if ctx.rank == 1:
        dist.all_reduce(torch.ones(7), async_op=True)
        os.kill(os.getpid(), signal.SIGKILL)


def test_the_trace_survives_the_death_of_its_rank(cluster):
    seen = record(cluster, die_in_the_middle)
    assert isinstance(seen.outcomes[1], Died)
    assert told(seen.outcomes[1].trace) == ["all_reduce SUM float32 (1,)", "all_reduce SUM float32 (7,)"]
    assert seen.witness == (
        "rank 0 started 1 collective on group default and then finished; "
        "rank 1 waits in its 2nd: all_reduce SUM float32 (7,)."
    )


def mix_silently(ctx):
    op = dist.ReduceOp.SUM if ctx.rank == 0 else dist.ReduceOp.MAX
    dist.all_reduce(torch.ones(2), op=op)


def test_collectives_that_mix_silently_are_noted_though_all_finished(cluster):
    seen = record(cluster, mix_silently)
    assert seen.witness == ""
    assert len(seen.notes) == 1
    assert "all_reduce SUM float32 (2,)" in seen.notes[0]
    assert "all_reduce MAX float32 (2,)" in seen.notes[0]


def mismatch(ctx):
    dist.all_reduce(torch.ones(1))
    if ctx.rank == 0:
        dist.all_reduce(torch.ones(1))
    else:
        dist.broadcast(torch.ones(10), src=1)
        dist.all_reduce(torch.ones(3))


def test_a_mismatch_is_witnessed_in_one_sentence(cluster):
    seen = record(cluster, mismatch)
    assert seen.witness.startswith("rank 0 waits in all_reduce SUM float32 (1,), its 2nd on group default; rank 1")
    assert "broadcast float32 (10,) from 1" in seen.witness


PLUGIN = """
import torch.distributed as dist

def create(store, rank, size, timeout):
    return dist.ProcessGroupGloo(store, rank, size, timeout)

if "MINE" not in dist.Backend._plugins:
    dist.Backend.register_backend("mine", create, devices=["cpu"])
"""


def backend_name(ctx):
    dist.all_reduce(torch.ones(1))
    return dist.get_backend(), ctx.device.type


def test_a_backend_of_ones_own_is_named_by_its_module_and_recorded_too(tmp_path, monkeypatch):
    Path(tmp_path / "backend_of_mine.py").write_text(PLUGIN)
    monkeypatch.syspath_prepend(str(tmp_path))
    with Cluster("backend_of_mine:mine", stall_s=1.5) as mine:
        seen = record(mine, backend_name)
        assert seen.values() == [("mine", "cpu")] * 2
        assert [told(trace) for trace in seen.traces()] == [["all_reduce SUM float32 (1,)"]] * 2


def test_a_line_cut_short_by_death_is_left_out(tmp_path):
    path = tmp_path / "trace"
    path.write_text('["group",0,"default",[0,1]]\n["start",0,0,"barrier","","",[],-1,-1,"MainThread"]\n["start",1,0,"al')
    (event,) = read(path)
    assert (event.op, event.done, event.ranks) == ("barrier", False, (0, 1))
    assert read(tmp_path / "none") == ()
