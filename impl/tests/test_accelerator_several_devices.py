"""Models on several devices, without any: autograd calls the reducer on a thread for each of them."""

import pytest
import torch
from torch import nn

from impl import DistributedDataParallel


class TurnTaken(Exception):
    """Raised by the lock of the test below: whoever raises it has asked for its turn first."""


class Turn:
    """A lock that lets nobody in."""

    def __enter__(self):
        raise TurnTaken

    def __exit__(self, *_):
        pass


@pytest.mark.parametrize("call", ["begin", "arrived", "should_be_full", "_backward_ended", "_unnoticed_ended"])
def test_whatever_autograd_calls_waits_for_its_turn_before_anything_else(call, alone):
    reducer = DistributedDataParallel(nn.Linear(2, 2)).reducer
    reducer.turn = Turn()
    with pytest.raises(TurnTaken):
        getattr(reducer, call)(*(() if call.startswith("_") else (0,)))


def test_a_turn_lets_the_same_thread_in_again(alone):
    model = DistributedDataParallel(nn.Linear(2, 2))
    with model.reducer.turn:
        model(torch.ones(1, 2)).sum().backward()
    assert model.module.weight.grad.tolist() == [[1.0, 1.0], [1.0, 1.0]]
