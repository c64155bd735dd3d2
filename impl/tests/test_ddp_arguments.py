"""Arguments of the constructors that cannot be meant: each is refused with a sentence that names it."""

import pytest
import torch
import torch._dynamo.compiled_autograd
import torch.distributed as dist
from torch import nn
from torch.optim import SGD

from impl import DistributedDataParallel, Join, ZeroRedundancyOptimizer
from impl.ddp import _MixedPrecision
from impl.ddp.hooks.powerSGD_hook import PowerSGDState
from impl.tests.comm_hook_ranks import run_on_ranks


def wrap(module=None, **arguments):
    return lambda: DistributedDataParallel(nn.Linear(2, 2) if module is None else module, **arguments)


def shard(**arguments):
    return lambda: ZeroRedundancyOptimizer(nn.Linear(2, 2).parameters(), SGD, lr=1.0, **arguments)


def place(location):
    return lambda: wrap()()._register_buffer_comm_hook(None, print, location)


STRANGER = dist.GroupMember.NON_GROUP_MEMBER
MISTAKES = {
    "a function": (wrap(abs), "TypeError", "built-in function abs"),
    "a class of modules": (wrap(nn.Linear), "TypeError", "class 'torch.nn.modules.linear.Linear'"),
    "a bare device": (wrap(device_ids=1), "TypeError", "[1]"),
    "a bare device by name": (wrap(device_ids="cuda:0"), "TypeError", "['cuda:0']"),
    "a size as text": (wrap(bucket_cap_mb="25"), "ValueError", "'25'"),
    "no number": (wrap(bucket_cap_mb=float("nan")), "ValueError", "nan"),
    "no end": (wrap(bucket_cap_mb_list=[1, float("inf")]), "ValueError", "inf"),
    "no mesh": (wrap(device_mesh=3), "TypeError", "device_mesh"),
    "no precision": (wrap(mixed_precision=torch.float16), "TypeError", "mixed_precision"),
    "integers on their way": (wrap(mixed_precision=_MixedPrecision(reduce_dtype=torch.int32)), "TypeError", "int32"),
    "a dtype as text": (wrap(mixed_precision=_MixedPrecision("bfloat16")), "TypeError", "'bfloat16'"),
    "a parameter's name": (wrap(param_to_hook_all_reduce="weight"), "TypeError", "param_to_hook_all_reduce"),
    "a location by name": (place("PRE_FORWARD"), "TypeError", "'PRE_FORWARD'"),
    "a flag as text": (wrap(find_unused_parameters="false"), "TypeError", "find_unused_parameters must be"),
    "another flag as text": (wrap(static_graph="no"), "TypeError", "'no'"),
    "a list for a flag": (shard(parameters_as_bucket_view=[True]), "TypeError", "parameters_as_bucket_view"),
    "a flag of a context": (lambda: Join([wrap()()], enable="0"), "TypeError", "enable"),
    "the divisor as text": (lambda: wrap()().join("all"), "TypeError", "divide_by_initial_world_size"),
    "a rank by name": (lambda: shard()().consolidate_state_dict("cpu"), "ValueError", "to='cpu'"),
    "no rank of a matrix": (lambda: PowerSGDState(None, 2.5), "ValueError", "whole number"),
    "no seed": (lambda: PowerSGDState(None, random_seed=None), "ValueError", "random_seed"),
    "a group's name": (wrap(process_group="world"), "TypeError", "'world'"),
    "ranks for a group": (shard(process_group=[0]), "TypeError", "[0]"),
    "a group of others": (wrap(process_group=STRANGER), "ValueError", "not a member"),
    "a group of others for ZeRO": (shard(process_group=STRANGER), "ValueError", "not a member"),
}


def complaints(rank, world):
    heard = {}
    for name, (mistake, _, _) in MISTAKES.items():
        try:
            mistake()
        except Exception as error:
            heard[name] = type(error).__name__, str(error)
    return heard


@pytest.fixture(scope="module")
def heard():
    (told,) = run_on_ranks(complaints, 1)
    return told


@pytest.mark.parametrize("name", MISTAKES)
def test_what_cannot_be_meant_is_refused_and_named(heard, name):
    _, kind, word = MISTAKES[name]
    assert heard[name][0] == kind
    assert word in heard[name][1]


def train_under_compiled_autograd(rank, world):
    """The complaint, and the gradient of an ordinary iteration after it."""
    model = DistributedDataParallel(nn.Linear(1, 1))
    with (
        torch._dynamo.compiled_autograd._enable(torch.compile(backend="eager")),
        pytest.raises(RuntimeError) as refused,
    ):
        model(torch.ones(1, 1)).backward()
    model(torch.ones(1, 1)).backward()
    return str(refused.value), model.module.weight.grad.item()


def test_compiled_autograd_is_refused_with_a_remedy_and_does_no_harm():
    ((told, gradient),) = run_on_ranks(train_under_compiled_autograd, 1)
    assert "Compiled autograd" in told
    assert "let the backward run as it is" in told
    assert gradient == 1.0


def train_with_settings_left_out(rank, world):
    """Flags as a file of settings gives them, in a context that shadows where torch's would."""
    model = DistributedDataParallel(nn.Linear(1, 1), find_unused_parameters=None, gradient_as_bucket_view=1)
    batches = [torch.ones(1, 1)] * (1 + rank)
    with Join([model], enable=1, throw_on_early_termination=None, divide_by_initial_world_size=None):
        for batch in batches:
            model.zero_grad()
            model(batch).sum().backward()
    return model.find_unused_parameters, model.gradient_as_bucket_view, model.module.weight.grad.item()


def test_none_is_false_and_a_number_is_what_it_counts_as():
    assert run_on_ranks(train_with_settings_left_out, 2) == [(False, True, 1.0)] * 2
