"""Parameters that are left out of reductions because no rank has used them (DDP-116)."""

import pytest
import torch
from torch import nn

from impl.ddp import DistributedDataParallel
from impl.tests.comm_hook_ranks import run_on_ranks

pytestmark = pytest.mark.slow


class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(2, 2), nn.Linear(2, 2)

    def forward(self, x, both):
        return self.second(self.first(x)) if both else self.first(x)


def use_again(_rank, _world):
    model = DistributedDataParallel(Branches(), find_unused_parameters=True, skip_all_reduce_unused_params=True)
    model(torch.ones(1, 2), both=False).sum().backward()
    try:
        model(torch.ones(1, 2), both=True).sum().backward()
    except RuntimeError as error:
        return str(error)
    return "no error"


def test_a_skipped_parameter_that_is_used_again_is_an_error_that_names_the_option():
    for told in run_on_ranks(use_again, 2):
        assert "second." in told, told
        assert "skip_all_reduce_unused_params=True asks for" in told, told
