"""Delayed parameters that the module holds under a second name."""

import pytest
import torch
from torch import nn

from impl.ddp import DistributedDataParallel
from impl.tests.comm_hook_ranks import run_on_ranks

pytestmark = pytest.mark.slow


class Tied(nn.Module):
    """Two scalar layers of the same weight, and a third."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(1, 1, bias=False) for _ in range(3))
        for layer in (self.a, self.c):
            nn.init.ones_(layer.weight)
        self.b.weight = self.a.weight

    def forward(self, x):
        return self.a(x) + self.b(x) + self.c(x)


def delay_the_second_name(rank, world):
    module, seen = Tied(), []
    ddp = DistributedDataParallel(
        module,
        delay_all_reduce_named_params=[("b.weight", module.b.weight)],
        param_to_hook_all_reduce=module.c.weight,
    )
    with ddp.join():
        for _ in range(1 + rank):
            ddp.zero_grad()
            ddp(torch.full((1, 1), 4.0)).sum().backward()
            seen.append((module.a.weight.grad.item(), module.c.weight.grad.item()))
    return seen, ddp._build_debug_param_to_name_mapping(ddp.reducer.parameters)


def test_a_parameter_that_is_delayed_under_one_of_its_names_is_in_no_bucket():
    both = (8.0, 4.0), {0: "c.weight"}
    told = run_on_ranks(delay_the_second_name, 2)
    assert told == [([both[0]], both[1]), ([both[0], (4.0, 2.0)], both[1])]
