"""ZeRO where the ordinary optimizer is expected: by schedulers, and by code that adds parameter groups."""

import pytest
import torch
from torch import nn

from impl.tests.comm_hook_ranks import run_on_ranks
from impl.zero import ZeroRedundancyOptimizer

WORLD = 2


def parameters():
    return [nn.Parameter(torch.full((place + 1,), float(place))) for place in range(4)]


def train(optimizer, params, scheduler):
    """Three steps with gradients that are the same everywhere."""
    for step in range(3):
        for place, parameter in enumerate(params):
            parameter.grad = torch.full_like(parameter, float(step + place + 1))
        optimizer.step()
        scheduler.step()


def with_one_cycle(optimizer, params):
    train(optimizer, params, torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=4))
    return [parameter.tolist() for parameter in params], [group["betas"] for group in optimizer.param_groups]


def one_cycle_on_ranks(rank, world):
    params = parameters()
    return with_one_cycle(ZeroRedundancyOptimizer(params, torch.optim.Adam, lr=0.1), params)


def test_a_scheduler_that_cycles_betas_trains_as_with_the_ordinary_optimizer():
    params = parameters()
    alone = with_one_cycle(torch.optim.Adam(params, lr=0.1), params)
    assert run_on_ranks(one_cycle_on_ranks, WORLD) == [alone] * WORLD


def with_added_groups(optimizer, params):
    optimizer.add_param_group({"params": []})  # what is left of a group when nothing in it is trained
    optimizer.add_param_group({"params": params[2:], "lr": 0.5})
    train(optimizer, params, torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5))
    return [parameter.tolist() for parameter in params], [group["lr"] for group in optimizer.param_groups]


def added_groups_on_ranks(rank, world):
    params = parameters()
    return with_added_groups(ZeroRedundancyOptimizer(params[:2], torch.optim.SGD, lr=1.0), params)


def test_an_empty_group_may_be_added_as_to_the_ordinary_optimizer():
    params = parameters()
    alone = with_added_groups(torch.optim.SGD(params[:2], lr=1.0), params)
    assert run_on_ranks(added_groups_on_ranks, WORLD) == [alone] * WORLD


def refused(rank, world, group):
    optimizer = ZeroRedundancyOptimizer(parameters(), torch.optim.SGD, lr=1.0)
    try:
        optimizer.add_param_group(group)
    except TypeError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("group", [3, [nn.Parameter(torch.ones(1))], nn.Parameter(torch.ones(1))])
def test_a_group_that_is_no_dictionary_is_refused_with_its_place(group):
    (text,) = run_on_ranks(refused, 1, group)
    assert "group 1" in text
    assert type(group).__name__ in text
