"""Backwards that are not the one to be reduced: gradients of inputs, of gradients, and past the parameters."""

import io
import warnings
from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, jvp, vmap
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

from impl import Join
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
    """A penalty that reaches no output and not all parameters, then a local iteration."""
    model = DistributedDataParallel(Squares())
    inputs = torch.tensor([[1.0, 2.0]])
    (slope,) = torch.autograd.grad(model(inputs).sum(), model.module.layer.bias, create_graph=True)
    slope.sum().backward(inputs=[model.module.layer.weight])
    with model.no_sync(), pytest.raises(RuntimeError, match="nothing told of its beginning"):
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


class Apart(nn.Module):
    """Two layers that share nothing; each has an output of its own."""

    def __init__(self):
        super().__init__()
        self.left, self.right = Squares(), Squares()

    def forward(self, inputs):
        return self.left(inputs), self.right(inputs)


def after_another_backward(model, inputs):
    first, (left, right) = model(inputs), model(inputs + 1)
    (first[0].mean() + first[1].mean()).backward()
    left.mean().backward()
    return right.mean()


def after_a_local_backward(model, inputs):
    left, right = model(inputs)
    with model.no_sync() if isinstance(model, DistributedDataParallel) else nullcontext():
        sum(output.mean() for output in model(inputs + 1)).backward()
    left.mean().backward()
    return right.mean()


IN_PARTS = [
    (loss, options)
    for loss in (after_another_backward, after_a_local_backward)
    for options in ({}, {"gradient_as_bucket_view": True})
]


def train_in_parts(rank, world):
    part = slice(2 * rank, 2 * rank + 2)
    return [train(DistributedDataParallel(Apart(), **options), loss, part) for loss, options in IN_PARTS]


def test_what_another_backward_has_reached_does_not_stand_for_what_a_further_part_is_to_bring():
    expected = [train(Apart(), loss, slice(None)) for loss, _ in IN_PARTS]
    assert run_on_ranks(train_in_parts, WORLD) == [expected] * WORLD


def train_checkpointed(rank, world):
    """The whole model is run again in each backward, and stops as soon as that has what it needs."""
    found = []
    for options in OPTIONS:
        model = DistributedDataParallel(Squares(), **options)
        with Join([model]):
            part = slice(2 * rank, 2 * rank + 2)
            loss = lambda model, inputs: checkpoint(model, inputs, use_reentrant=False).mean()  # noqa: E731
            found.append(train(model, loss, part))
    return found


def test_a_model_that_is_checkpointed_as_a_whole_trains_in_a_join_context():
    expected = train(Squares(), lambda model, inputs: model(inputs).mean(), slice(None))
    assert run_on_ranks(train_checkpointed, WORLD) == [[expected] * len(OPTIONS)] * WORLD


def leave_one_out_with_gradients_there(rank, world):
    model, found = DistributedDataParallel(Apart(), static_graph=True), []
    for iteration in range(4):
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        left, _ = model(torch.full((1, 2), float(2 * rank + iteration)))
        left.sum().backward()
        found.append([parameter.grad.tolist() for parameter in model.parameters()])
    return found


def test_in_a_static_graph_a_gradient_that_is_there_already_does_not_make_a_parameter_used():
    first, second = run_on_ranks(leave_one_out_with_gradients_there, WORLD)
    assert first == second
    assert all(torch.tensor(each).count_nonzero() for left in first for each in left[:2])
    assert not any(torch.tensor(each).count_nonzero() for left in first for each in left[2:])


def ask_for_a_few_at_a_time(rank, world):
    model = DistributedDataParallel(Squares(), static_graph=True)
    loss = model(torch.ones(1, 2)).sum()
    loss.backward(inputs=[model.module.layer.weight], retain_graph=True)
    with pytest.raises(RuntimeError, match="training graph has changed"):
        loss.backward(inputs=[model.module.layer.bias])


def test_a_static_graph_refuses_what_its_first_backward_was_not_asked_for():
    run_on_ranks(ask_for_a_few_at_a_time, WORLD)


class Fork(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)
        for layer in (self.a, self.b):
            nn.init.ones_(layer.weight)

    def forward(self, x, both):
        return self.a(self.b(x) if both else x)


def transform(rank, world, model, options):
    """Gradients that ``torch.func`` computes through the wrapper, each before an iteration of training."""
    wrapped, inputs = DistributedDataParallel(model, **options), torch.tensor([[1.0, 2.0], [rank, 1.0]])
    copies = {name: parameter.detach() for name, parameter in wrapped.named_parameters()}
    loss = lambda given, x: functional_call(wrapped, given, (x,)).sum()  # noqa: E731
    found = []
    for _ in range(4):
        told = [
            grad(loss)(copies, inputs)["module.layer.weight"],
            grad(lambda x: wrapped(x).sum())(inputs),
            vmap(grad(lambda x: wrapped(x[None]).sum()))(inputs),
            jvp(wrapped, (inputs,), (torch.ones_like(inputs),))[1],
        ]
        wrapped.zero_grad()
        vmap(lambda x: wrapped(x[None]))(inputs).sum().backward()
        each = [each.grad.tolist() for each in model.parameters()]
        wrapped.zero_grad()
        wrapped(inputs).sum().backward()
        found.append(([each.tolist() for each in told], each, [each.grad.tolist() for each in model.parameters()]))
    return found


@pytest.mark.parametrize("options", [{}, {"find_unused_parameters": True}, {"static_graph": True}], ids=str)
def test_transforms_through_the_wrapper_are_local_and_training_goes_on_between_them(options):
    by_rank = run_on_ranks(transform, WORLD, Squares(), options)
    module = Squares()
    for rank in range(WORLD):
        module(torch.tensor([[1.0, 2.0], [rank, 1.0]])).sum().backward()
    means = [(parameter.grad / WORLD).tolist() for parameter in module.parameters()]
    for rank, found in enumerate(by_rank):
        module.zero_grad()
        inputs = torch.tensor([[1.0, 2.0], [rank, 1.0]], requires_grad=True)
        module(inputs).sum().backward()
        slopes = inputs.grad.tolist()
        for (of_copies, whole, single, along), mapped, trained in found:
            assert of_copies == module.layer.weight.grad.tolist()
            assert whole == single == slopes
            assert along == inputs.grad.sum(1).tolist()
            assert mapped == trained == means


def leave_out_a_delayed_parameter(rank, world):
    module = Fork()
    delayed = [("b.weight", module.b.weight)]
    model = DistributedDataParallel(
        module, delay_all_reduce_named_params=delayed, param_to_hook_all_reduce=module.a.weight
    )
    found = []
    for both in (True, rank == 1):
        loss = model(torch.full((1, 1), 2.0 * (rank + 1)), both).sum()
        model.zero_grad()
        loss.backward()
        found.append(module.b.weight.grad.item())
    return found


def test_a_delayed_gradient_that_was_cleared_and_does_not_come_adds_nothing():
    assert run_on_ranks(leave_out_a_delayed_parameter, WORLD) == [[3.0, 2.0]] * WORLD


def save_an_output(rank, world):
    output = DistributedDataParallel(Squares())(torch.ones(1, 2))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.save(output, io.BytesIO())


def test_saving_an_output_warns_of_nothing():
    run_on_ranks(save_an_output, WORLD)
