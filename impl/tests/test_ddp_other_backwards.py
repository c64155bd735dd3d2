"""Backwards that are not the one to be reduced: gradients of inputs, of gradients, and past the parameters."""

import pytest
import torch
from torch import nn
from torch.func import functional_call

from impl.ddp import DistributedDataParallel
from impl.tests.comm_hook_ranks import run_on_ranks

pytestmark = pytest.mark.slow

WORLD = 2


class Squares(nn.Module):
    """Small integers stay small integers, in gradients of gradients as well."""

    def __init__(self, bias=True):
        super().__init__()
        self.layer = nn.Linear(2, 2, bias)
        with torch.no_grad():
            self.layer.weight.copy_(torch.tensor([[1.0, -2.0], [0.0, 1.0]]))
            if bias:
                self.layer.bias.fill_(1.0)

    def forward(self, inputs):
        return self.layer(inputs).pow(2).sum(1)


def attack(model, inputs):
    """Train on inputs that were moved along their gradient, as adversarial training does."""
    (slope,) = torch.autograd.grad(model(inputs).sum(), inputs)
    return model((inputs + slope.sign()).detach()).mean()


def attack_by_backward(model, inputs):
    model(inputs).sum().backward(inputs=[inputs])
    return model((inputs + inputs.grad.sign()).detach()).mean()


def penalise_slope(model, inputs):
    outputs = model(inputs)
    (slope,) = torch.autograd.grad(outputs.sum(), inputs, create_graph=True)
    return (outputs + slope.pow(2).sum(1)).mean()


def penalise_gradients(model, inputs):
    outputs = model(inputs)
    gradients = torch.autograd.grad(outputs.mean(), list(model.parameters()), create_graph=True)
    return outputs.mean() + sum(gradient.sum() for gradient in gradients)


def train_other_weights_first(model, inputs):
    others = {name: value.detach().clone().requires_grad_() for name, value in model.named_parameters()}
    functional_call(model, others, (inputs,)).mean().backward()
    return model(inputs).mean()


LOSSES = (attack, attack_by_backward, penalise_slope, penalise_gradients, train_other_weights_first)
OPTIONS = ({}, {"find_unused_parameters": True}, {"gradient_as_bucket_view": True}, {"static_graph": True})
CASES = [
    (loss, options)
    for loss in LOSSES
    for options in OPTIONS
    if loss is not train_other_weights_first or "static_graph" not in options  # two forwards that differ
]


def train(model, loss, part):
    gradients = []
    for iteration in range(3):
        model.zero_grad()
        inputs = torch.arange(4 * WORLD).view(-1, 2).sub(iteration).float()[part].requires_grad_()
        loss(model, inputs).backward()
        gradients.append([parameter.grad.tolist() for parameter in model.parameters()])
    return gradients


def train_on_rank(rank, world):
    part = slice(2 * rank, 2 * rank + 2)
    return [train(DistributedDataParallel(Squares(), **options), loss, part) for loss, options in CASES]


@pytest.fixture(scope="module")
def trained():
    return run_on_ranks(train_on_rank, WORLD)


@pytest.mark.parametrize("place", range(len(CASES)), ids=lambda place: f"{CASES[place][0].__name__}-{CASES[place][1]}")
def test_only_the_backward_that_accumulates_is_reduced(trained, place):
    expected = train(Squares(), CASES[place][0], slice(None))
    assert [gradients[place] for gradients in trained] == [expected] * WORLD


def slope_of(model, inputs):
    (slope,) = torch.autograd.grad(model(inputs).sum(), inputs, create_graph=True)
    return slope.pow(2).sum(1).mean()


def weights_first(model, inputs):
    outputs = model(inputs)
    sum(parameter.pow(2).sum() for parameter in model.parameters() if parameter.dim() > 1).backward()
    return outputs.mean()


SILENT = [(loss, options, bias) for loss, bias in ((slope_of, False), (weights_first, True)) for options in OPTIONS[:3]]


def train_silently(rank, world):
    part = slice(2 * rank, 2 * rank + 2)
    found = []
    for loss, options, bias in [*SILENT, (slope_of, {"static_graph": True}, False)]:
        found.append(train(DistributedDataParallel(Squares(bias), **options), loss, part))
    return found


def test_a_backward_through_no_output_is_reduced_unless_the_forwards_own_follows():
    found = run_on_ranks(train_silently, WORLD)
    for place, (loss, _, bias) in enumerate([*SILENT, (slope_of, {}, False)]):
        expected = train(Squares(bias), loss, slice(None))
        assert [gradients[place] for gradients in found] == [expected] * WORLD


def penalise_alone_with_a_bias(rank, world):
    model = DistributedDataParallel(Squares())
    inputs = torch.ones(2, 2, requires_grad=True)
    model(inputs)
    model.module.layer.weight.pow(2).sum().backward()
    try:
        model(inputs)
    except RuntimeError as error:
        return str(error)


def test_one_that_reached_a_part_of_the_parameters_is_told_at_the_next_forward():
    for told in run_on_ranks(penalise_alone_with_a_bias, WORLD):
        assert "went through no output" in told
        assert "did not receive grad: layer.bias" in told


def replace_the_only_parameter(rank, world):
    model = DistributedDataParallel(nn.Linear(1, 1, bias=False))
    model.module.weight = nn.Parameter(torch.ones(1, 1))
    model(torch.ones(1, 1)).sum().backward()
    try:
        model(torch.ones(1, 1))
    except RuntimeError as error:
        return str(error)


def test_a_replaced_parameter_is_told_at_the_next_forward():
    assert all("weight (1 in all) were replaced" in told for told in run_on_ranks(replace_the_only_parameter, WORLD))


def go_back_through_one_of_two(rank, world):
    """Two forwards share a backward; a further one goes through either of them: the gradients after each."""
    told = []
    for again in (0, 1):
        model = DistributedDataParallel(nn.Linear(1, 1, bias=False))
        outputs = [model(torch.tensor([[8.0 * (1 + rank)]])).sum() for _ in range(2)]
        sum(outputs).backward(retain_graph=True)
        shared = model.module.weight.grad.item()
        outputs[again].backward()
        told.append((shared, model.module.weight.grad.item()))
    return told


def test_a_further_backward_through_either_forward_of_a_shared_one_stays_local():
    assert run_on_ranks(go_back_through_one_of_two, WORLD) == [[(24.0, 24.0 + 8.0 * (1 + rank))] * 2 for rank in (0, 1)]
