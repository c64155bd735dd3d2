"""Iterations that an exception ends on one rank, where nobody is left behind in them; and models that cannot join."""

from contextlib import nullcontext, suppress

import pytest
import torch
import torch.distributed as dist
from torch import nn

from impl import DistributedDataParallel, Join
from impl.ddp.hooks.default_hooks import allreduce_hook
from impl.tests.comm_hook_ranks import run_on_ranks

pytestmark = pytest.mark.slow


class Picky(nn.Module):
    """Two weights, of which the second has its gradient first; refuses negative batches."""

    def __init__(self):
        super().__init__()
        self.weight, self.late = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1))

    def forward(self, x):
        if x.item() < 0:
            raise ValueError("a negative batch")
        return self.weight * x * self.late


def fail(*_):
    raise ValueError("a bad gradient")


def skip_when_alone(rank, _world, where):
    model, seen = DistributedDataParallel(Picky(), bucket_cap_mb=1e-6), []  # a bucket is under way where one fails
    with Join([model]):
        for iteration in range(1 + 4 * rank):
            model.zero_grad()
            bad = iteration == 3
            try:
                loss = model(torch.full((1,), -1.0 if bad and where == "forward" else 4.0)).sum()
                with model.module.weight.register_hook(fail) if bad and where == "backward" else nullcontext():
                    loss.backward()
                seen.append(model.module.weight.grad.item())
            except ValueError:
                seen.append("skipped")
    return seen


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_a_rank_that_is_the_last_with_inputs_may_skip_a_batch_that_fails(where):
    assert run_on_ranks(skip_when_alone, 2, where) == [[4.0], [4.0, 2.0, 2.0, "skipped", 2.0]]


def skip_while_accumulating(rank, _world):
    model, seen = DistributedDataParallel(Picky()), []
    with Join([model]):
        for _ in range(2 + rank):
            model.zero_grad()
            with model.no_sync(), suppress(ValueError):
                model(torch.full((1,), -1.0 if rank == 1 else 4.0)).sum().backward()
            model(torch.full((1,), 4.0)).sum().backward()
            seen.append(model.module.weight.grad.item())
    return seen


def test_a_rank_may_skip_a_batch_that_is_only_accumulated():
    assert run_on_ranks(skip_while_accumulating, 2) == [[6.0, 6.0], [6.0, 6.0, 2.0]]


def fail_before_the_block(rank, _world):
    model = DistributedDataParallel(Picky())
    with pytest.raises(ValueError, match="gradient"), model.module.weight.register_hook(fail):
        model(torch.full((1,), 4.0)).sum().backward()
    with Join([model]):
        for _ in range(1 + rank):
            model.zero_grad()
            model(torch.full((1,), 4.0)).sum().backward()
    return model.module.weight.grad.item()


def test_a_backward_that_failed_before_the_block_does_not_count_in_it():
    assert run_on_ranks(fail_before_the_block, 2)[1] == 2.0


def average_each_parameter(rank, _world, inside):
    model = DistributedDataParallel(Picky())
    told = ""
    if not inside:
        model._register_accum_grad_hook()
    try:
        with Join([model]):
            if inside:
                model._register_accum_grad_hook()
            for _ in range(1 + rank):
                model(torch.full((1,), 4.0)).sum().backward()
    except RuntimeError as error:
        told = str(error)
    with Join([model], enable=False):
        model(torch.full((1,), 4.0)).sum().backward()
    return "parameter by parameter" in told, model.module.weight.grad.item()


@pytest.mark.parametrize("inside", [False, True])
def test_gradients_averaged_one_by_one_are_refused_on_every_rank(inside):
    assert run_on_ranks(average_each_parameter, 2, inside) == [(True, 4.0)] * 2


def skip_by_itself(rank, _world):
    """The only rank of its group; its communication hook fails once."""
    group = [dist.new_group([one]) for one in range(2)][rank]
    model, seen, fails = DistributedDataParallel(Picky(), process_group=group), [], [False, True, False]

    def hook(_state, bucket):
        if fails[len(seen)]:
            raise ValueError("a full disk")
        return allreduce_hook(group, bucket)

    model.register_comm_hook(None, hook)
    with Join([model]):
        for _ in fails:
            model.zero_grad()
            try:
                model(torch.full((1,), 4.0)).sum().backward()
                seen.append(model.module.weight.grad.item())
            except ValueError:
                seen.append("skipped")
    return seen


def test_a_rank_by_itself_may_skip_a_batch_that_fails_in_its_hook():
    assert run_on_ranks(skip_by_itself, 2) == [[4.0, "skipped", 4.0]] * 2
