"""Copies of a model made at an awkward moment."""

import copy

import torch
from torch import nn

from impl import DistributedDataParallel
from impl.join.hooks import _JoinConfig


def test_a_copy_made_inside_a_join_context_is_not_in_it(alone):
    model = DistributedDataParallel(nn.Linear(1, 1))
    with model.join():
        model(torch.ones(1, 1)).sum().backward()
        twin = copy.deepcopy(model)  # for an average of weights, say
    assert twin._join_config == _JoinConfig.construct_disabled_join_config()
    twin(torch.ones(1, 1)).sum().backward()
    assert twin.module.weight.grad.item() == 1.0


def test_a_copy_keeps_whether_outputs_are_cloned(alone):
    model = DistributedDataParallel(nn.Linear(1, 1))
    model._set_ddp_sink_clone(False)
    assert copy.deepcopy(model)._ddp_sink_clone is False
