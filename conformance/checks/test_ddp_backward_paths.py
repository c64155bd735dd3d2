"""Backwards that reach the parameters by other ways than through the outputs of one forward."""

import itertools

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from conformance.api.checking import MANY, check
from conformance.fixtures import models
from conformance.fixtures.observing import TINY_MIB, assert_refused, mean_of_all, mine, wrapped
from conformance.fixtures.training import gradient, gradients, numbers, private, scalar_means
from conformance.ranks import caught

WAYS = ({}, {"find_unused_parameters": True}, {"gradient_as_bucket_view": True}, {"bucket_cap_mb": TINY_MIB})


class Slope(nn.Module):
    """Two layers one behind the other; the slope of what it returns depends on both weights. A spare one is unused."""

    def __init__(self, spare=False):
        super().__init__()
        self.a, self.b = nn.Linear(2, 2, bias=False), nn.Linear(2, 1, bias=False)
        with torch.no_grad():
            for place, parameter in enumerate(self.parameters()):
                parameter.copy_(torch.arange(1.0, 1.0 + parameter.numel()).view_as(parameter) - place)
        if spare:
            self.spare = nn.Linear(1, 1, bias=False)

    def forward(self, x):
        return self.b(self.a(x).square())


def inputs(ctx_rank, iteration):
    return torch.tensor([[1.0 + ctx_rank, 2.0 - iteration]])


def slope_of(model, x):
    """A loss of the gradient of the inputs alone; no output takes part in it."""
    x = x.clone().requires_grad_()
    (found,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
    return 12 * found.sum()


# -- DDP-049: a loss that is made of gradients alone


def searches(options):
    return options.get("find_unused_parameters", False)


def train_slopes(ctx):
    seen = []
    for options in WAYS:
        model = wrapped(ctx, Slope(spare=searches(options)), **options)
        for iteration in range(4):
            model.zero_grad(set_to_none=True)
            slope_of(model, inputs(ctx.rank, iteration).to(ctx.device)).backward()
            seen.append(gradients(model))
    return seen


def means_of_slopes(world, iterations):
    """One process's gradients of the loss of slopes, by iteration."""
    expected = []
    for iteration in range(iterations):
        found = []
        for rank in range(world):
            alone = Slope()
            slope_of(alone, inputs(rank, iteration)).backward()
            found.append(dict(alone.named_parameters()))
        means = {name: sum(each[name].grad for each in found) / world for name in found[0]}
        expected.append(numbers(means.items()))
    return expected


@check("DDP-049", "DDP-065", worlds=(1, *MANY), beyond=False)
def test_a_loss_that_is_made_of_gradients_alone_is_averaged(ranks):
    expected = means_of_slopes(ranks.world, 4)
    expected = [{**means, **({"spare.weight": None} if searches(way) else {})} for way in WAYS for means in expected]
    for rank, seen in enumerate(ranks(train_slopes)):
        assert seen == expected, f"rank {rank}"


class Shifted(Slope):
    """Adds a weight that the slope of the outputs does not depend on."""

    def __init__(self):
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(1))

    def forward(self, x):
        return super().forward(x) + self.shift


def train_shifted(ctx):
    seen = []
    for options in ({"find_unused_parameters": True}, {"find_unused_parameters": True, "bucket_cap_mb": TINY_MIB}):
        model = wrapped(ctx, Shifted(), **options)
        for iteration in range(3):
            model.zero_grad(set_to_none=True)
            slope_of(model, inputs(ctx.rank, iteration).to(ctx.device)).backward()
            seen.append(gradients(model))
    return seen


@check("DDP-065", "DDP-101", worlds=(1, *MANY), beyond=False)
def test_where_use_is_searched_a_loss_of_gradients_that_leaves_a_weight_out_is_averaged(ranks):
    expected = [{**means, "shift": None} for means in means_of_slopes(ranks.world, 3)]
    for rank, seen in enumerate(ranks(train_shifted)):
        assert seen == expected * 2, f"rank {rank}"


def reach_one_layer(ctx):
    """After a forward the weights of one layer are differentiated and no output; what the next forward says.

    At first, where the backward of a forward under no_sync still follows, and once the buckets have settled.
    """
    told = []
    for options, before, name in itertools.product(WAYS, (0, 3), "ab"):
        model, x = wrapped(ctx, Slope(), **options), inputs(ctx.rank, 0).to(ctx.device)
        for _ in range(before):
            model(x).sum().backward()
        with model.no_sync():
            inside = model(x).sum()
        model(x)
        getattr(model.module, name).weight.sum().backward()

        def go_on(model=model, x=x, inside=inside, before=before):
            if not before:
                inside.backward()
            model(x)

        told.append(caught(go_on))
    return told


@check("DDP-062", "DDP-049", worlds=(1, 2, 3), beyond=False)
def test_where_a_backward_past_the_outputs_leaves_parameters_out_the_next_forward_says_so(ranks):
    for errors in zip(*ranks(reach_one_layer), strict=True):
        assert_refused(errors, RuntimeError)


def go_on_after_the_complaint(ctx):
    """A backward that leaves parameters out, by way of an output or past it; what the next forwards say, and give."""
    told = []
    for leave_out in (lambda output, a: output.sum(), lambda output, a: a.weight.sum()):
        for options in ({}, {"gradient_as_bucket_view": True, "bucket_cap_mb": TINY_MIB}):
            model = wrapped(ctx, models.Branches(), **options)
            leave_out(model(mine(ctx)), model.module.a).backward()
            errors = [caught(model, mine(ctx), with_b=True)]
            model.zero_grad(set_to_none=True)
            errors += [caught(lambda model=model: model(mine(ctx), with_b=True).sum().backward())]
            told.append((errors, gradients(model)))
            ctx.meet("told")
    return told


@check("DDP-062", worlds=MANY, beyond=False)
def test_what_a_backward_left_out_is_complained_of_once_and_then_training_goes_on(ranks):
    means = {name: [mean_of_all(ranks.world)] for name in ("a.weight", "b.weight")}
    for rank, told in enumerate(ranks(go_on_after_the_complaint)):
        for (first, second), found in told:
            assert_refused([first], RuntimeError)
            assert second is None, f"rank {rank}, once more: {second}"
            assert found == means, f"rank {rank}"


# -- DDP-062: several backwards between a forward and its own


def reach_in_steps(ctx):
    """Between a forward and its backward each weight is reached by a backward of its own; with and without sinks."""
    seen = []
    for options in WAYS:
        model = wrapped(ctx, models.Branches(), **options)
        for iteration in range(3):
            model.zero_grad(set_to_none=True)
            output = model(models.divisible_scalar(ctx.rank, iteration).to(ctx.device), with_b=True)
            for name in ("a", "b", "a"):
                weight = getattr(model.module, name).weight
                weight.grad = None if name == "b" else weight.grad
                (12 * weight.sum()).backward()
            output.sum().backward()
            seen.append(gradients(model))
    return seen


@check("DDP-062", "DDP-049", worlds=(1, *MANY), beyond=False)
def test_backwards_that_reach_the_weights_one_by_one_before_the_forwards_own_are_averaged_with_it(ranks):
    means = scalar_means((3,) * ranks.world)
    expected = [{"a.weight": [mean + 24.0], "b.weight": [mean + 12.0]} for mean in means]
    for rank, seen in enumerate(ranks(reach_in_steps)):
        assert seen == expected * len(WAYS), f"rank {rank}"


# -- DDP-062: parameters that only a backward before the forward's own reaches


def reach_beside(ctx):
    """One weight is reached by a backward of its own alone, which comes between a forward and the forward's own."""
    seen = []
    for options in (*(way for way in WAYS if not searches(way)), {"static_graph": True}):
        model = wrapped(ctx, models.Branches(), **options)
        for iteration in range(4):
            model.zero_grad(set_to_none=True)
            x = models.divisible_scalar(ctx.rank, iteration).to(ctx.device)
            output = model(x)
            (2 * model.module.b(x)).sum().backward()
            output.sum().backward()
            seen.append(gradients(model))
    return seen


@check("DDP-049", "DDP-062", worlds=(1, *MANY), beyond=False)
def test_a_weight_that_only_a_backward_before_the_forwards_own_reaches_is_averaged_too(ranks):
    expected = [{"a.weight": [mean], "b.weight": [2 * mean]} for mean in scalar_means((4,) * ranks.world)]
    for rank, seen in enumerate(ranks(reach_beside)):
        assert seen == expected * len(WAYS), f"rank {rank}"


# -- DDP-049: the gradients of some parameters at a time


def ask_for_some_at_a_time(ctx):
    """The backward of one forward is asked for the gradient of one weight, then for that of the other."""
    seen = []
    for options in WAYS:
        model = wrapped(ctx, models.Branches(), **options)
        for iteration in range(4):
            model.zero_grad(set_to_none=True)
            loss = model(models.divisible_scalar(ctx.rank, iteration).to(ctx.device), with_b=True).sum()
            loss.backward(inputs=[model.module.a.weight], retain_graph=True)
            (2 * loss).backward(inputs=[model.module.b.weight])
            seen.append(gradients(model))
    return seen


@check("DDP-049", "DDP-099", worlds=(1, *MANY), beyond=False)
def test_gradients_that_backward_is_asked_for_a_few_at_a_time_are_averaged(ranks):
    expected = [{"a.weight": [mean], "b.weight": [2 * mean]} for mean in scalar_means((4,) * ranks.world)]
    for rank, seen in enumerate(ranks(ask_for_some_at_a_time)):
        assert seen == expected * len(WAYS), f"rank {rank}"


# -- DDP-074: the reducer of torch's name, as trainers and pipelines call it


def prepare(ctx):
    """Forwards under no_sync, of whose backwards the reducer is told at last that one is to be synchronised."""
    seen = []
    for options in ({}, {"find_unused_parameters": True}):
        model = wrapped(ctx, models.Branches(), **options)
        reducer = private(model, "reducer")
        for iteration in range(3):
            model.zero_grad(set_to_none=True)
            with model.no_sync():
                outputs = [model(models.divisible_scalar(ctx.rank, one), with_b=not options) for one in (0, iteration)]
                outputs[0].sum().backward()
                reducer.prepare_for_backward([outputs[1]] if options or iteration else [])
                outputs[1].sum().backward()
            seen.append(gradients(model))
    return seen


@check("DDP-074", "DDP-073", worlds=(1, *MANY), beyond=False)
def test_a_backward_that_the_reducer_was_told_of_is_synchronised_whatever_its_forward_was_told(ranks):
    expected = []
    for with_b in (True, False):
        for iteration in range(3):
            data = [models.divisible_scalar(rank, one).item() for rank in range(ranks.world) for one in (0, iteration)]
            mean = [sum(data) / ranks.world]
            expected.append({"a.weight": mean, "b.weight": mean if with_b else None})
    for rank, seen in enumerate(ranks(prepare)):
        assert seen == expected, f"rank {rank}"


# -- DDP-058: frozen and thawed between iterations


def freeze_and_thaw(ctx):
    """Under a search one weight is frozen for a while, in the second iteration or in a later one."""
    seen = []
    for first in (1, 3):
        for options in ({}, {"gradient_as_bucket_view": True}):
            model = wrapped(ctx, models.Branches(), find_unused_parameters=True, **options)
            for iteration in range(6):
                model.module.b.weight.requires_grad_(iteration not in (first, first + 1))
                model.zero_grad(set_to_none=True)
                model(mine(ctx, iteration + 1), with_b=True).sum().backward()
                left = model.module.b.weight.grad
                seen.append((first, iteration, gradient(model.module.a.weight), None if left is None else left.item()))
    return seen


@check("DDP-099", "DDP-058", worlds=(1, 2, 3), beyond=False)
def test_a_weight_that_is_frozen_for_some_iterations_is_left_out_of_these_alone(ranks):
    expected = []
    for first in (1, 1, 3, 3):
        for iteration in range(6):
            mean = mean_of_all(ranks.world, iteration + 1)
            expected.append((first, iteration, mean, None if iteration in (first, first + 1) else mean))
    for rank, seen in enumerate(ranks(freeze_and_thaw)):
        assert seen == expected, f"rank {rank}"


# -- DDP-067: the whole model checkpointed


def checkpoint_all(ctx):
    """The model's forward runs again inside its backward: that is no iteration, and keeps no buffer from being sent."""
    seen = []
    for options in WAYS:
        model = wrapped(ctx, models.Counting(1.0 + ctx.rank), **options)
        for iteration in range(4):
            model.zero_grad(set_to_none=True)
            x = mine(ctx, iteration + 1).requires_grad_()
            checkpoint(model, x, use_reentrant=False).sum().backward()
            seen.append(gradient(model.module.a.weight))
    return seen


@check("DDP-067", worlds=(1, *MANY), beyond=False)
def test_a_model_that_is_checkpointed_as_a_whole_trains_like_any_other(ranks):
    means = [mean_of_all(ranks.world, iteration + 1) for iteration in range(4)]
    for rank, seen in enumerate(ranks(checkpoint_all)):
        assert seen == means * len(WAYS), f"rank {rank}"


def checkpoint_a_part(ctx):
    """Each forward leaves a layer out."""
    model = wrapped(ctx, models.Branches(), find_unused_parameters=True)
    seen = []
    for iteration in range(3):
        model.zero_grad(set_to_none=True)
        x = mine(ctx, iteration + 1).requires_grad_()
        checkpoint(model, x, use_reentrant=False).sum().backward()
        seen.append((gradient(model.module.a.weight), model.module.b.weight.grad))
    return seen


@check("DDP-067", worlds=(1, *MANY), beyond=False)
def test_a_model_that_is_checkpointed_as_a_whole_may_leave_layers_out(ranks):
    means = [(mean_of_all(ranks.world, iteration + 1), None) for iteration in range(3)]
    for rank, seen in enumerate(ranks(checkpoint_a_part)):
        assert seen == means, f"rank {rank}"


def checkpoint_unevenly(ctx):
    """As many iterations as this rank's place says, with what the model held after each."""
    model = wrapped(ctx, models.scalar())
    seen = []
    with model.join():
        for iteration in range(ctx.rank + 1):
            model.zero_grad(set_to_none=True)
            x = mine(ctx, iteration + 1).requires_grad_()
            checkpoint(model, x, use_reentrant=False).sum().backward()
            seen.append(gradient(model.module.weight))
    return seen


@check("DDP-067", worlds=MANY, beyond=False)
def test_a_model_that_is_checkpointed_as_a_whole_may_have_uneven_inputs(ranks):
    means = [
        sum(12.0 * (rank + 1) * (iteration + 1) for rank in range(iteration, ranks.world)) / ranks.world
        for iteration in range(ranks.world)
    ]
    for rank, seen in enumerate(ranks(checkpoint_unevenly)):
        assert seen == means[: rank + 1], f"rank {rank}"


# -- DDP-049: transforms of functions, and backwards that are compiled


class Scaled(nn.Module):
    """A layer whose output is scaled by a buffer, which is broadcast before each forward."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 1, bias=False)
        nn.init.ones_(self.layer.weight)
        self.register_buffer("scale", torch.full((1,), 12.0))

    def forward(self, x):
        return self.layer(x) * self.scale


def rows_of(rank, iteration):
    return torch.arange(6.0).view(3, 2) * (rank + 1) + iteration


def map_over_rows(ctx):
    """By options and iteration: gradients of a model that is mapped over the rows of its input."""
    seen = []
    for options in ({}, {"gradient_as_bucket_view": True}, {"bucket_cap_mb": TINY_MIB}):
        model = wrapped(ctx, Scaled(), **options)
        for iteration in range(3):
            model.zero_grad(set_to_none=True)
            torch.func.vmap(model)(rows_of(ctx.rank, iteration).to(ctx.device)).sum().backward()
            seen.append(gradients(model))
    return seen


def rows_alone(world, iteration):
    model = Scaled()
    for rank in range(world):
        model(rows_of(rank, iteration)).sum().backward()
    return {"layer.weight": [value / world for value in model.layer.weight.grad.flatten().tolist()]}


@check("DDP-049", worlds=(1, 2, 4), beyond=False)
def test_a_model_that_is_mapped_over_rows_is_averaged(ranks):
    right = [rows_alone(ranks.world, iteration) for iteration in range(3)] * 3
    for rank, seen in enumerate(ranks(map_over_rows)):
        assert seen == right, f"rank {rank}"


def slope_by_a_transform(model, x):
    """The derivative by the input of the squared outputs, which depends on the weights."""
    return torch.func.grad(lambda given: model(given).square().sum())(x)


def train_slopes_by_a_transform(ctx):
    model, seen = wrapped(ctx, Scaled()), []
    for iteration in range(3):
        model.zero_grad(set_to_none=True)
        slope_by_a_transform(model, rows_of(ctx.rank, iteration).to(ctx.device)).sum().backward()
        seen.append(gradients(model))
    return seen


@check("DDP-049", worlds=(1, 2, 4), beyond=False)
def test_the_slope_of_a_model_with_buffers_by_a_transform_is_averaged(ranks):
    right = []
    for iteration in range(3):
        model = Scaled()
        for rank in range(ranks.world):
            slope_by_a_transform(model, rows_of(rank, iteration)).sum().backward()
        values = model.layer.weight.grad.flatten().tolist()
        right.append({"layer.weight": [value / ranks.world for value in values]})
    for rank, seen in enumerate(ranks(train_slopes_by_a_transform)):
        assert seen == right, f"rank {rank}"


def compile_the_model(ctx):
    """Gradients of a model that is compiled, of which a batch fails in the forward."""
    model, seen = wrapped(ctx, Scaled()), []
    compiled = torch.compile(model, backend="eager")
    for iteration in range(3):
        model.zero_grad(set_to_none=True)
        compiled(rows_of(ctx.rank, iteration).to(ctx.device)).sum().backward()
        seen.append(gradients(model))
    return seen, caught(compiled, torch.ones(2, 3, device=ctx.device)) is not None


@check("DDP-049", worlds=(1, 2), beyond=False, deadline_s=15)
def test_a_model_that_is_compiled_is_averaged(ranks):
    right = [rows_alone(ranks.world, iteration) for iteration in range(3)]
    for rank, (seen, failed) in enumerate(ranks(compile_the_model)):
        assert seen == right, f"rank {rank}"
        assert failed, f"rank {rank}: an input of another shape"


def compile_the_backward(ctx):
    """What an iteration raises whose backward is to be compiled, and its gradients; then those of an ordinary one on
    another model."""
    from torch._dynamo import compiled_autograd

    model, other = wrapped(ctx, Scaled()), wrapped(ctx, Scaled())
    x = rows_of(ctx.rank, 0).to(ctx.device)
    with compiled_autograd._enable(lambda graph: graph):
        error = caught(lambda: model(x).sum().backward())
    ctx.meet("told")
    other(x).sum().backward()
    return error, gradients(model), gradients(other)


@check("DDP-049", worlds=(1, 2), beyond=False, deadline_s=15)
def test_a_backward_that_is_compiled_is_averaged_or_refused(ranks):
    right = rows_alone(ranks.world, 0)
    for rank, (error, found, other) in enumerate(ranks(compile_the_backward)):
        if error is None:
            assert found == right, f"rank {rank}: neither refused nor averaged"
        else:
            assert_refused([error], RuntimeError, "compiled")
        assert other == right, f"rank {rank}: the next iteration"
