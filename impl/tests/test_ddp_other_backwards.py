"""Backwards that are not the one to be reduced: gradients of inputs, of gradients, and past the parameters."""

import pytest
import torch
from torch import nn
from torch.func import functional_call

from impl.ddp import DistributedDataParallel
from impl.tests.comm_hook_ranks import run_on_ranks

WORLD = 2


class Squares(nn.Module):
    """Small integers stay small integers, in gradients of gradients as well."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2)
        with torch.no_grad():
            self.layer.weight.copy_(torch.tensor([[1.0, -2.0], [0.0, 1.0]]))
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
