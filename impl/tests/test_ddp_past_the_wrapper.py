"""Backwards that go past the wrapper's forward, and a last iteration that leaves a parameter out, are told of."""

import subprocess
import sys
import warnings

import pytest
import torch
from torch import nn

from impl import DistributedDataParallel
from impl.ddp.messages import PAST_THE_WRAPPER

from .comm_hook_ranks import run_on_ranks

pytestmark = pytest.mark.slow


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(1, 1)

    def forward(self, x):
        return self.layer(x)

    def training_loss(self, x):
        return self.layer(x).sum()


def bypass(ddp, x):
    for _ in range(3):
        ddp.training_loss(x).backward()


def bypass_after_a_forward(ddp, x):
    ddp(x).sum().backward()
    bypass(ddp, x)


def bypass_in_no_sync(ddp, x):
    with ddp.no_sync():
        bypass(ddp, x)


def train_with_penalties(ddp, x):
    for _ in range(3):
        ddp(x).sum().backward()
        (ddp.module.layer.weight**2).sum().backward()


def accumulate(ddp, x):
    with ddp.no_sync():
        ddp(x).sum().backward()
    loss = ddp(x).sum()
    loss.backward(retain_graph=True)
    for _ in range(3):
        loss.backward(retain_graph=True)


def train_in_another_wrapper(ddp, x):
    ddp(x).sum().backward()
    another = DistributedDataParallel(ddp.module)
    for _ in range(4):
        another(x).sum().backward()


def warned(rank, world, how):
    ddp = DistributedDataParallel(Net())
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        how(ddp, torch.ones(1, 1))
    return [str(each.message) for each in seen].count(PAST_THE_WRAPPER)


@pytest.mark.parametrize("how", [bypass, bypass_after_a_forward], ids=lambda how: how.__name__)
def test_gradients_that_no_forward_of_the_wrapper_has_made_are_told_of_once(how):
    assert run_on_ranks(warned, 2, how) == [1, 1]


LOCAL = [bypass_in_no_sync, train_with_penalties, accumulate, train_in_another_wrapper]


@pytest.mark.parametrize("how", LOCAL, ids=lambda how: how.__name__)
def test_what_is_meant_to_be_local_or_averaged_otherwise_is_not_told_of(how):
    assert run_on_ranks(warned, 2, how) == [0, 0]


class LossInside(Net):
    """Calls backward on its loss by itself."""

    def forward(self, x):
        loss = super().forward(x).sum()
        loss.backward()
        return loss.detach()


def backward_inside(rank, world, options):
    ddp = DistributedDataParallel(LossInside(), **options)
    with ddp.no_sync():
        ddp(torch.ones(1, 1))
    with pytest.raises(RuntimeError, match=r"calls by itself.*Return the loss"):
        ddp(torch.ones(1, 1))
    return True


class HalfInside(Net):
    """Goes backward through one half of its loss, and returns the other."""

    def forward(self, x):
        super().forward(x).sum().backward()
        return super().forward(x)


def half_inside(rank, world, options):
    ddp, found = DistributedDataParallel(HalfInside(), **options), []
    for _ in range(3):
        ddp.zero_grad()
        ddp(torch.full((1, 1), 2.0 * rank)).sum().backward()
        found.append(ddp.module.layer.weight.grad.item())
    return found


@pytest.mark.parametrize("options", [{}, {"find_unused_parameters": True}], ids=str)
def test_what_a_forward_accumulates_by_itself_is_averaged_with_the_rest(options):
    assert run_on_ranks(half_inside, 2, options) == [[2.0] * 3] * 2


@pytest.mark.parametrize("options", [{}, {"find_unused_parameters": True}, {"static_graph": True}], ids=str)
def test_a_forward_that_calls_backward_by_itself_is_refused(options):
    assert run_on_ranks(backward_inside, 2, options) == [True, True]


SCRIPT = """
import torch, torch.distributed as dist
from torch import nn
from impl import DistributedDataParallel

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.left_out = nn.Linear(1, 1), nn.Linear(1, 1)
    def forward(self, x, both):
        return self.used(x) + (self.left_out(x) if both else 0)

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
ddp = DistributedDataParallel(Net())
ddp(torch.ones(1, 1), True).sum().backward()
ddp(torch.ones(1, 1), {last}).sum().backward()
dist.destroy_process_group()
"""


@pytest.mark.parametrize("last", [False, True])
def test_a_last_iteration_that_leaves_a_parameter_out_is_told_of_at_exit(last):
    script = SCRIPT.replace("{last}", str(last))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert ("left_out.weight" in done.stderr) is not last
