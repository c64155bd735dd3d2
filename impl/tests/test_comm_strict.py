"""Strict mode: where ranks are about to start different collectives, all of them say which, and no data are mixed."""

import os
import threading

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import distributed_c10d

from impl import DistributedDataParallel, Join, ZeroRedundancyOptimizer
from impl.comm import collectives, strict
from impl.comm.local_groups import new_local_group
from impl.comm.ranks import STRICT, GroupRank, Team
from impl.errors import CollectivesDiffer
from impl.tests.comm_hook_ranks import run_on_ranks

pytestmark = pytest.mark.slow


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))


def differ(rank, world, how):
    os.environ[STRICT] = "1"
    team, mine = Team.of(), torch.ones(4)
    odd = rank == 1
    collectives.all_reduce(team, torch.ones(3), "first").wait()
    try:
        if how == "skipped" and not odd:
            collectives.all_reduce(team, mine, "extra").wait()
        if how == "swapped" and odd:
            collectives.broadcast(team, torch.ones(4), GroupRank(0), "weights").wait()
        size, dtype = 5 if how == "size" and odd else 4, torch.float64 if how == "dtype" and odd else torch.float32
        collectives.all_reduce(team, torch.ones(size, dtype=dtype), "gradients").wait()
        collectives.broadcast(team, mine, GroupRank(0), "weights").wait()
        return None
    except CollectivesDiffer as error:
        return str(error)


@pytest.mark.parametrize(("how", "views"), [
    ("skipped", ["extra (all-reduce of 4 x torch.float32", "gradients (all-reduce of 4 x torch.float32"]),
    ("swapped", ["weights (broadcast of 4 x torch.float32 from rank 0", "gradients (all-reduce of 4"]),
    ("size", ["gradients (all-reduce of 5", "gradients (all-reduce of 4"]),
    ("dtype", ["torch.float64", "torch.float32"]),
])  # fmt: skip
def test_every_rank_names_both_views_where_one_collective_differs(how, views):
    for told in run_on_ranks(differ, 3, how):
        assert "rank 1: " in told
        assert "ranks 0, 2: " in told
        for view in views:
            assert view in told


def damaged_below(rank, world, how):
    """What rank 1's process group does is not what it was asked for."""
    os.environ[STRICT] = "1"
    team = Team.of()
    collectives.all_reduce(team, torch.ones(3), "first").wait()
    real = team.group

    class Damaging:
        """Stands for the group where rank 1 starts something on it."""

        def __getattr__(self, name):
            return getattr(real, name)

        def allreduce(self, tensors, options):
            if how == "gives something else":
                tensors[0].add_(64)
            work = real.allreduce(tensors, options)
            if how == "twice":
                real.allreduce([tensors[0].clone()], options)
            if how == "gets something else":
                work.wait()
                tensors[0].add_(1)
            return work

        def broadcast(self, tensors, options):
            tensors[0].add_(1)
            return real.broadcast(tensors, options)

    if rank == 1:
        strict._agreements[damaging := Damaging()] = strict._agreements[real]
        object.__setattr__(team, "group", damaging)
    with pytest.raises(CollectivesDiffer) as told:
        if how == "sends something else":
            collectives.broadcast(team, torch.ones(4), GroupRank(1), "gradients")
        else:
            collectives.all_reduce(team, torch.ones(4), "gradients")
    return str(told.value)


@pytest.mark.parametrize("how", ["gives something else", "gets something else", "twice", "sends something else"])
def test_a_collective_that_is_damaged_below_is_told_before_its_result_is_used(how):
    for told in run_on_ranks(damaged_below, 3, how):
        assert "gradients gave" in told
        who = "ranks 0, 1, 2" if how == "gives something else" else "rank 1"  # the sum alone does not tell whose part
        assert f"{who}: gradients gave" in told


def rounded(rank, world):
    """Sums of numbers that no float holds exactly, that cancel, that overflow, and of none."""
    os.environ[STRICT] = "1"
    team = Team.of()
    for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.complex64, torch.int64):
        torch.manual_seed(rank)
        numbers = torch.randn(10_000, dtype=torch.float64) * 10 ** torch.randn(10_000, dtype=torch.float64)
        balanced = torch.cat([numbers, -numbers.roll(1)])  # adds up to nothing on each rank, as gradients often do
        for each in (numbers, numbers * (1, -1, 1)[rank], balanced, numbers[:1], numbers[:0]):
            collectives.all_reduce(team, each.to(dtype), "rounded")
    collectives.all_reduce(team, torch.full((3,), 60_000.0, dtype=torch.float16), "too large")
    return True


def test_rounding_is_no_damage():
    assert all(run_on_ranks(rounded, 3))


def evaluates_alone(rank, world):
    """Rank 1 alone evaluates, which starts the broadcast of buffers that the others do not start."""
    os.environ[STRICT] = "1"
    model = DistributedDataParallel(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)))
    with pytest.raises(CollectivesDiffer, match="in iteration") as told:
        for iteration in range(3):
            if iteration == rank == 1:
                with torch.no_grad():
                    model(torch.ones(2, 2))
            model(torch.ones(2, 2)).sum().backward()
    return str(told.value)


def test_an_evaluation_on_one_rank_is_told_before_buffers_and_gradients_meet():
    for told in run_on_ranks(evaluates_alone, 2):
        assert "buffers" in told
        assert "bucket" in told


def train(rank, world, on):
    os.environ[STRICT] = "1" if on else "0"
    model = DistributedDataParallel(net(), bucket_cap_mb=1e-5)
    zero = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.25)
    with Join([model, zero]):
        for _ in range(2 + 2 * rank):
            model.zero_grad()
            model(torch.full((1, 2), 1.0 + rank)).sum().backward()
            zero.step()
    zero.consolidate_state_dict()
    return [parameter.tolist() for parameter in model.parameters()], strict._agreements.get(Team.of().group) is not None


def test_right_programs_train_to_the_same_bits_with_uneven_inputs():
    strictly, loosely = run_on_ranks(train, 3, True), run_on_ranks(train, 3, False)
    assert [weights for weights, _ in strictly] == [weights for weights, _ in loosely]
    assert [on for _, on in strictly + loosely] == [True] * 3 + [False] * 3


def is_strict(_rank, _world, text):
    if text is not None:
        os.environ[STRICT] = text
    return Team.of().is_strict


def test_it_is_off_unless_it_is_asked_for():
    assert run_on_ranks(is_strict, 1, None) == [os.environ.get(STRICT, "0") not in ("", "0")]
    assert [run_on_ranks(is_strict, 1, text) for text in ("off", "0", "", "1", "on")] == [[False]] * 3 + [[True]] * 2


def make_groups_on_some(rank, _world):
    """Ranks 1 and 2 make two groups of their own, then all make one of everybody."""
    groups = [new_local_group([1, 2]) for _ in range(2)] if rank else []
    counted = torch.ones(1)
    for group in (*groups, dist.new_group()):
        dist.all_reduce(counted, group=group)
    return counted.item()


def test_groups_of_some_ranks_keep_nobody_from_making_one_of_all():
    assert run_on_ranks(make_groups_on_some, 3) == [9.0] * 3


def train_on_overlapping_groups(rank, _world):
    """Rank 1 is in two groups, the others in one each."""
    os.environ[STRICT], told = "1", []
    for members in ([0, 1], [1, 2]):
        group = dist.new_group(members)
        if rank in members:
            model = DistributedDataParallel(nn.Linear(1, 1, bias=False), process_group=group)
            model(torch.full((1, 1), 1.0 + rank)).sum().backward()
            told.append(model.module.weight.grad.item())
    return told


def test_groups_that_overlap_agree_each_for_itself():
    assert run_on_ranks(train_on_overlapping_groups, 3) == [[1.5], [1.5, 2.5], [2.5]]


def name_at_once(_rank, _world):
    """Two threads are in the midst of making a group at the same time, and leave in the order in which they came; what
    torch's own groups are named by then and after that."""
    torchs, together, right = distributed_c10d._process_group_name, threading.Barrier(2), dist.new_group
    first_is_done = threading.Event()

    def new_group(*args, **named):
        together.wait()
        if threading.current_thread().name == "1":
            first_is_done.wait(10)
        return right(*args, **named)

    dist.new_group = new_group
    threads = [threading.Thread(target=new_local_group, args=([0],), name=str(number)) for number in range(2)]
    for thread in threads:
        thread.start()
    threads[0].join()
    first_is_done.set()
    threads[1].join()
    dist.new_group = right
    return distributed_c10d._process_group_name is torchs


def test_two_threads_that_make_groups_leave_torchs_names_as_they_were():
    assert run_on_ranks(name_at_once, 1) == [True]
