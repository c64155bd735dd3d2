"""Backwards that are not the one to be reduced: gradients of inputs, of gradients, and past the parameters."""

import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

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


class Hidden:
    """An object that cannot be searched for tensors."""

    def __init__(self, tensor):
        self.tensor = tensor


class Hiding(Squares):
    """Hands out its output in such an object where asked to."""

    hides = False

    def forward(self, inputs):
        output = super().forward(inputs)
        return Hidden(output) if self.hides else output


def settled(model, rank):
    """Three iterations, after which arrivals are only noted; the inputs of this rank."""
    inputs = torch.tensor([[1.0, 2.0]]) * (rank + 1)
    for _ in range(3):
        model.zero_grad()
        model(inputs).sum().backward()
    model.zero_grad()
    return inputs


def recompute_outside(rank, world):
    model = DistributedDataParallel(Squares())
    inputs = settled(model, rank).requires_grad_()
    with model.no_sync(), set_checkpoint_early_stop(False):
        output = checkpoint(model, inputs, use_reentrant=False)
    output.sum().backward()
    alone = Squares()
    alone(inputs).sum().backward()
    return all(torch.equal(*both) for both in gradients_of(model, alone))


def gradients_of(*models):
    alike = zip(*(model.parameters() for model in models), strict=True)
    return [[each.grad for each in parameters] for parameters in alike]


def test_a_checkpointed_forward_under_no_sync_stays_local_where_the_backward_is_outside():
    assert run_on_ranks(recompute_outside, WORLD) == [True] * WORLD


def go_on_without_hooks(rank, world):
    model, alone = DistributedDataParallel(Hiding()), Squares()
    inputs = settled(model, rank)
    model._remove_autograd_hooks()
    model.module.hides = True
    model(inputs).tensor.sum().backward()
    alone(inputs).sum().backward()
    return all(torch.equal(*both) for both in gradients_of(model, alone))


def test_without_its_hooks_a_model_stays_local_whatever_it_returns():
    assert run_on_ranks(go_on_without_hooks, WORLD) == [True] * WORLD


def accumulate_after_a_penalty(rank, world):
    """A penalty that reaches no output and not all parameters, then a local iteration, then a synchronised one."""
    model = DistributedDataParallel(Squares())
    inputs = torch.tensor([[1.0, 2.0]])
    (slope,) = torch.autograd.grad(model(inputs).sum(), model.module.layer.bias, create_graph=True)
    slope.sum().backward(inputs=[model.module.layer.weight])
    with model.no_sync():
        model(inputs).sum().backward()
    with pytest.raises(RuntimeError, match="nothing told of its beginning"):
        model(inputs)


def test_a_local_iteration_does_not_hide_that_a_reduction_is_missing():
    run_on_ranks(accumulate_after_a_penalty, WORLD)


def checkpoint_in_a_join(rank, world):
    """The whole model is checkpointed, whose recomputation ends by an exception of the checkpoint's own."""
    model, found = DistributedDataParallel(Squares()), []
    inputs = torch.tensor([[1.0, 2.0]]).requires_grad_()
    with model.join():
        for _ in range(2 + rank):
            model.zero_grad()
            checkpoint(model, inputs, use_reentrant=False).sum().backward()
            found.append(model.module.layer.bias.grad.tolist())
    return found


def test_a_checkpoint_of_the_whole_model_goes_on_in_a_join_context():
    alone = Squares()
    alone(torch.tensor([[1.0, 2.0]])).sum().backward()
    full = alone.layer.bias.grad
    half = full / 2
    for rank, found in enumerate(run_on_ranks(checkpoint_in_a_join, WORLD)):
        assert found == [full.tolist()] * 2 + [half.tolist()] * rank
