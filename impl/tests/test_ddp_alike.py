"""Options that decide which collectives are made: ranks that differ in one are told so when the model is wrapped."""

import pytest
import torch
from torch import nn

from impl.ddp import DistributedDataParallel
from impl.ddp.mixed_precision import _MixedPrecision
from impl.tests.comm_hook_ranks import run_on_ranks

pytestmark = pytest.mark.slow

HALF = _MixedPrecision(reduce_dtype=torch.float16)


def wrap(rank, _world, option, values):
    try:
        model = DistributedDataParallel(nn.Linear(2, 1), **{option: values[rank]})
    except RuntimeError as error:
        return str(error)
    model(torch.ones(1, 2)).sum().backward()
    return model.module.weight.grad.tolist()


SETTINGS = {"forward_sync_buffers": "buffers synchronised in forward"}  # named otherwise than the option


@pytest.mark.parametrize(
    ("option", "values"),
    [
        ("static_graph", [False, True]),
        ("find_unused_parameters", [True, False]),
        ("skip_all_reduce_unused_params", [False, True]),
        ("mixed_precision", [None, HALF]),
        ("forward_sync_buffers", [True, False]),
    ],
)
def test_every_rank_is_told_which_option_differs_and_between_whom(option, values):
    setting = SETTINGS.get(option, option)
    for told in run_on_ranks(wrap, 2, option, values):
        assert f"group rank 0 has [setting {setting}={values[0]}]" in told, told
        assert f"rank 1 has [setting {setting}={values[1]}]" in told, told


@pytest.mark.parametrize("option", ["gradient_as_bucket_view", "batched_grad_copy"])
def test_an_option_that_decides_no_collective_may_differ(option):
    assert run_on_ranks(wrap, 2, option, [False, True]) == [[[1.0, 1.0]]] * 2
