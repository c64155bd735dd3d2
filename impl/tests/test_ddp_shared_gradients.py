"""Gradients that share memory because the program wants it so stay where they are; those of other kinds do no harm."""

import pytest
import torch
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor

from impl import DistributedDataParallel
from impl.tests.comm_hook_ranks import run_on_ranks

pytestmark = pytest.mark.slow


class Both(nn.Module):
    """The first parameter's gradient is the input's, the second's twice that."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Parameter(torch.zeros(3)), nn.Parameter(torch.zeros(3))

    def forward(self, x):
        return (self.first * x).sum() + (self.second * 2 * x).sum()


def keep_in_one_buffer(rank, _world):
    module, buffer, found = Both(), torch.zeros(3, 2), []
    model = DistributedDataParallel(module)
    module.first.grad, module.second.grad = buffer[:, 0], buffer[:, 1]
    for _ in range(3):
        buffer.zero_()
        model(torch.full((3,), 1.0 + rank)).backward()
        found.append(buffer[0].tolist())
    return found


def test_gradients_in_a_buffer_of_the_programs_stay_in_it():
    assert run_on_ranks(keep_in_one_buffer, 2) == [[[1.5, 3.0]] * 3] * 2


def tie(rank, _world):
    module, found = Both(), []
    module.second.data = module.first.data
    model = DistributedDataParallel(module)
    module.first.grad = torch.zeros(3)
    module.second.grad = module.first.grad.view(3)
    for _ in range(2):
        module.first.grad.zero_()
        model(torch.full((3,), 1.0 + rank)).backward()
        found.append(module.first.grad.data_ptr() == module.second.grad.data_ptr())
    return found


def test_gradients_that_the_program_has_tied_stay_tied():
    assert run_on_ranks(tie, 2) == [[True, True]] * 2


class Inside(nn.Module):
    """One parameter of a class that keeps two tensors inside, and two without elements."""

    def __init__(self):
        super().__init__()
        self.pair = nn.Parameter(TwoTensor(torch.ones(2), torch.ones(2)))
        self.empty = nn.ParameterList([nn.Parameter(torch.ones(0)) for _ in range(2)])

    def forward(self, factor):
        return (self.pair * factor).sum() + sum(each.sum() for each in self.empty)


def keep_others_inside(rank, _world):
    module = Inside()
    model = DistributedDataParallel(module)
    for _ in range(2):
        model.zero_grad()
        model(torch.tensor(1.0 + rank)).backward()
    return module.pair.grad.a.tolist()


def test_gradients_without_memory_of_their_own_are_averaged():
    assert run_on_ranks(keep_others_inside, 2) == [[1.5, 1.5]] * 2
