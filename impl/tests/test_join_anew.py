"""A context on a group on which one has failed: right where the ranks are in step, and refused where they are not."""

import pytest
import torch
import torch.distributed as dist
from torch import nn

from impl import DistributedDataParallel, Join
from impl.comm import collectives
from impl.comm.ranks import Team
from impl.join import in_step
from impl.tests.comm_hook_ranks import run_on_ranks


def weight_of_one(group=None):
    layer = nn.Linear(1, 1, bias=False)
    nn.init.ones_(layer.weight)
    return DistributedDataParallel(layer, process_group=group)


def epoch(model, rank, fails=lambda iteration: False):
    with Join([model]):
        for iteration in range(2):
            if fails(iteration):
                raise KeyError("bad sample")
            model.zero_grad()
            model(torch.full((1, 1), 4.0 * (1 + rank))).sum().backward()
    return model.module.weight.grad.item()


def fail_and_go_on(rank, world, failing, elsewhere):
    model = weight_of_one()
    with pytest.raises((KeyError, RuntimeError)):
        epoch(model, rank, lambda iteration: iteration == 1 and rank in failing)
    told = []
    for group in [dist.new_group()] * 2 if elsewhere else [None] * 2:
        model = model if group is None else weight_of_one(group)
        try:
            told.append(epoch(model, rank))
        except RuntimeError as error:
            told.append(f"{error} {model._join_config.enable}")
    return told


@pytest.mark.parametrize("world", [2, 3])
def test_where_one_rank_failed_the_group_is_refused_again_and_again(world):
    for refusals in run_on_ranks(fail_and_go_on, world, [1], False):
        for refusal in refusals:
            assert "out of step" in str(refusal)
            assert "make a new process group on all ranks" in refusal
            assert refusal.endswith(" False"), "the model is still enabled for a context"


def test_where_all_ranks_failed_at_one_place_they_go_on():
    assert run_on_ranks(fail_and_go_on, 2, [0, 1], False) == [[6.0, 6.0]] * 2


def test_a_new_group_is_in_step():
    assert run_on_ranks(fail_and_go_on, 2, [1], True) == [[6.0, 6.0]] * 2




def fail_at_the_very_end(rank, world):
    model = weight_of_one()
    join = Join([model])
    hook, right = join._join_hooks[0], type(join._join_hooks[0]).post_hook

    def post_hook(is_last_joiner):
        right(hook, is_last_joiner)
        if rank == 0:
            raise KeyError("no space left")

    hook.post_hook = post_hook
    try:
        with join:
            model(torch.ones(1, 1)).sum().backward()
    except KeyError:
        assert rank == 0
    return epoch(model, rank)


def test_a_failure_after_the_last_collective_keeps_nobody_waiting():
    assert run_on_ranks(fail_at_the_very_end, 2) == [6.0, 6.0]


def evaluate_alone(rank, _world):
    model = weight_of_one()
    with Join([model]):
        for iteration in range(2 + rank):
            model(torch.ones(1, 1)).sum().backward()
            if (rank, iteration) == (0, 1):
                with torch.no_grad():
                    model.eval()(torch.ones(1, 1))
                model.train()
    return "left"


def test_one_rank_may_evaluate_inside_a_context():
    assert run_on_ranks(evaluate_alone, 2) == ["left", "left"]


class Lost(dist.HashStore):
    """A store whose host has gone."""

    def set(self, *_):
        raise dist.DistStoreError("Broken pipe")


def test_a_lost_store_keeps_nobody_from_training():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        in_step.make_sure(Team.of(), "join/g/1", Lost())
    finally:
        dist.destroy_process_group()


def test_the_backend_counts_what_was_started():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        team = Team.of()
        before = collectives.started(team)
        dist.all_reduce(torch.ones(1))
        assert (before, collectives.started(team)) == (0, 1)
    finally:
        dist.destroy_process_group()
