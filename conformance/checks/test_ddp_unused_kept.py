"""What a parameter has where some rank, or every one, leaves it out: its old gradient, or one laid out like itself."""

from contextlib import nullcontext

import torch
from torch import nn

from conformance.api.checking import MANY, check
from conformance.fixtures import models
from conformance.fixtures.errors import fail
from conformance.fixtures.observing import TINY_MIB, wrapped
from conformance.fixtures.training import gradients, scalar_means, whole
from conformance.ranks import caught

VIEWS = {"copies": False, "views": True}


def scale_then_leave_out(ctx, runs, as_view):
    """Of a part that is used once, scaled by every rank in its own way and then used by nobody: its gradients.

    ``runs``: it runs all the same, and its output does not take part in the loss.
    """
    model = wrapped(
        ctx, models.Parts("ab"), bucket_cap_mb=TINY_MIB, find_unused_parameters=True, gradient_as_bucket_view=as_view
    )
    model.module.shape = dict
    told = []
    for iteration, used in enumerate(("ab", "a", "a")):
        model.module.use = "ab" if runs else used
        outputs = model(models.divisible(ctx.rank, iteration).to(ctx.device))
        torch.stack([outputs[name].sum() for name in used]).sum().backward()
        if iteration == 0:
            for parameter in model.module.parts["b"].parameters():
                parameter.grad.mul_(ctx.rank + 1)  # as clipping by a norm of the rank's own would
        told.append([whole(parameter.grad).flatten().tolist() for parameter in model.module.parts["b"].parameters()])
    return told


@check("DDP-100", worlds=MANY, scenarios=VIEWS)
def test_an_old_gradient_that_differs_between_ranks_is_left_as_it_is(ranks, scenario):
    for _, told in ranks.each(scale_then_leave_out, (False, True), scenario):
        assert told[0][0] != told[1][0], "the ranks must have different gradients to keep"
        for rank, (first, second, third) in enumerate(told):
            assert first == second == third, f"rank {rank}"


def fail_behind_the_model(ctx, as_view):
    """The gradients of a part that a backward leaves out, before it and after it has failed behind the model.

    By then every bucket is under way.
    """
    model = wrapped(
        ctx, models.Parts("ab"), bucket_cap_mb=TINY_MIB, find_unused_parameters=True, gradient_as_bucket_view=as_view
    )
    model(models.divisible(ctx.rank, 0).to(ctx.device)).sum().backward()
    left_out = list(model.module.parts["b"].parameters())
    for parameter in left_out:
        parameter.grad.mul_(ctx.rank + 1)
    before = [whole(parameter.grad).flatten().tolist() for parameter in left_out]
    x = models.divisible(ctx.rank, 1).to(ctx.device).requires_grad_()
    x.register_hook(fail)
    model.module.use = "a"
    assert caught(model(x.clone()).sum().backward) is not None
    ctx.meet("failed")
    return before, [whole(parameter.grad).flatten().tolist() for parameter in left_out]


@check("DDP-100", worlds=MANY, beyond=False, scenarios=VIEWS)
def test_an_old_gradient_outlasts_a_backward_that_fails(ranks, scenario):
    for rank, (before, after) in enumerate(ranks(fail_behind_the_model, scenario)):
        assert before == after, f"rank {rank}"


def clear_what_was_accumulated(ctx, as_view):
    """Inside no_sync a part is used, then all gradients are cleared; nobody uses it in the pass that follows."""
    model = wrapped(
        ctx, models.Parts("ab"), bucket_cap_mb=TINY_MIB, find_unused_parameters=True, gradient_as_bucket_view=as_view
    )
    told = []
    for iteration in range(3):
        with model.no_sync():
            model.module.use = "ab"
            model(models.divisible(ctx.rank, iteration).to(ctx.device)).sum().backward()
        model.zero_grad(set_to_none=True)
        model.module.use = "a"
        model(models.divisible(ctx.rank, iteration).to(ctx.device)).sum().backward()
        told.append([name for name, gradient in gradients(model).items() if gradient is not None])
        model.zero_grad(set_to_none=True)
    return told


@check("DDP-100", worlds=MANY, beyond=False, scenarios=VIEWS)
def test_what_was_accumulated_and_cleared_counts_as_used_no_more(ranks, scenario):
    assert ranks(clear_what_was_accumulated, scenario) == [[["parts.a.weight", "parts.a.bias"]] * 3] * ranks.world


def put_gradients_by(ctx):
    """Gradients that somebody keeps while training goes on: as they came, and as they are in the end."""
    model = wrapped(ctx, models.Parts("ab"), find_unused_parameters=True)
    kept, told = [], []
    for iteration in range(3):
        model.zero_grad(set_to_none=True)
        model.module.use = "a" if ctx.rank else "ab"
        model(models.divisible(ctx.rank, iteration).to(ctx.device)).sum().backward()
        kept.append([parameter.grad for parameter in model.parameters()])
        told.append([whole(gradient).tolist() for gradient in kept[-1]])
    return told, [[gradient.tolist() for gradient in gradients] for gradients in kept]


@check("DDP-099", worlds=MANY)
def test_what_was_averaged_for_a_part_that_others_use_is_the_ranks_own_to_keep(ranks):
    for rank, (as_they_came, in_the_end) in enumerate(ranks(put_gradients_by)):
        assert as_they_came[0] != as_they_came[1], "the iterations must differ"
        assert in_the_end == as_they_came, f"rank {rank}"


def freeze_and_cast(ctx):
    model = wrapped(ctx, models.Parts("ab"), find_unused_parameters=True)
    frozen = list(model.module.parts["b"].requires_grad_(False).parameters())
    model.float()
    model(models.divisible(ctx.rank, 0).to(ctx.device)).sum().backward()
    return [(parameter.requires_grad, parameter.grad) for parameter in frozen]


@check("DDP-100", worlds=MANY)
def test_what_was_frozen_after_wrapping_stays_frozen_when_the_model_is_cast(ranks):
    for rank, told in enumerate(ranks(freeze_and_cast)):
        assert told == [(False, None)] * 2, f"rank {rank}"


class Layered(nn.Module):
    """A scalar layer, and parameters in other orders than row by row, which only some forwards use."""

    def __init__(self):
        super().__init__()
        self.a = models.scalar()
        self.conv = nn.Parameter(torch.ones(3, 2, 2, 2).contiguous(memory_format=torch.channels_last))
        self.across = nn.Parameter(torch.ones(3, 4).t())
        self.all = True

    def forward(self, x):
        scaled = 12 * self.a(x).sum()
        ramps = [torch.arange(1.0, 1.0 + p.numel()).view(p.shape).to(x.device) for p in (self.conv, self.across)]
        used = (self.conv * ramps[0]).sum() + (self.across * ramps[1]).sum()
        return scaled + 12 * used if self.all else scaled


def use_on_the_last_rank_only(ctx, as_view):
    model = wrapped(ctx, Layered(), find_unused_parameters=True, gradient_as_bucket_view=as_view)
    model.module.all = ctx.rank == ctx.world - 1
    told = []
    for _ in range(3):
        model.zero_grad(set_to_none=True)
        model(torch.ones(1, 1, device=ctx.device)).backward()
        held = model.module.conv, model.module.across
        told.append([(whole(p.grad).flatten().tolist(), p.grad.stride() == p.stride()) for p in held])
    return told


@check("DDP-099", "DDP-030", worlds=MANY, beyond=False, scenarios=VIEWS)
def test_who_did_not_use_a_parameter_gets_a_gradient_with_its_strides(ranks, scenario):
    expected = [([12.0 * (1 + place) / ranks.world for place in range(count)], True) for count in (24, 12)]
    assert ranks(use_on_the_last_rank_only, scenario) == [[expected] * 3] * ranks.world


class Handing(nn.Module):
    """A scalar layer, and a parameter that is itself an output."""

    def __init__(self):
        super().__init__()
        self.a = models.scalar()
        self.handed = nn.Parameter(torch.ones(1))

    def forward(self, x):
        return self.a(x), self.handed


def use_what_is_handed_out(ctx):
    model, told = wrapped(ctx, Handing(), find_unused_parameters=True), []
    for iteration in range(3):
        model.zero_grad(set_to_none=True)
        output, handed = model(models.divisible_scalar(ctx.rank, iteration).to(ctx.device))
        (output.sum() + 12 * (ctx.rank + 1) * handed.sum()).backward()
        told.append((whole(model.module.a.weight.grad).item(), whole(model.module.handed.grad).item()))
    return told


@check("DDP-099", worlds=MANY, beyond=False)
def test_a_parameter_that_is_an_output_counts_as_used(ranks):
    world = ranks.world
    expected = [(mean, 6.0 * (world + 1)) for mean in scalar_means((3,) * world)]
    assert ranks(use_what_is_handed_out) == [expected] * world


def hold_back_what_is_handed_out(ctx):
    """A forward without a backward, one inside no_sync with it, and one outside: the gradients after the latter two."""
    told = []
    for as_view in VIEWS.values():
        model = wrapped(ctx, Handing(), gradient_as_bucket_view=as_view)
        x = models.divisible_scalar(ctx.rank, 0).to(ctx.device)
        model(x)
        for context in (model.no_sync(), nullcontext()):
            with context:
                output, handed = model(x)
                (output.sum() + 12 * (ctx.rank + 1) * handed.sum()).backward()
            told.append((whole(model.module.a.weight.grad).item(), whole(model.module.handed.grad).item()))
    return told


@check("DDP-072", worlds=MANY, beyond=False)
def test_a_parameter_that_is_an_output_stays_local_inside_behind_a_forward_without_a_backward(ranks):
    local = [(models.divisible_scalar(rank, 0).item(), 12.0 * (rank + 1)) for rank in range(ranks.world)]
    mean = tuple(2 * sum(each) / ranks.world for each in zip(*local, strict=True))
    assert ranks(hold_back_what_is_handed_out) == [[mine, mean] * 2 for mine in local]


def evaluate_more_than_is_trained(ctx):
    """Two models in one backward. Each is evaluated with gradients and its whole self before a forward that uses ``b``
    on every second rank alone; the output of the evaluation is still held."""
    both = [
        wrapped(ctx, models.Branches(), find_unused_parameters=True, bucket_cap_mb=TINY_MIB) for _ in range(2)
    ]
    x, seen = 12 * models.place(ctx.rank, 0), []
    for _ in range(2):
        for model in both:
            model.zero_grad()
        held = [model(x, with_b=True) for model in both]
        sum(model(x, with_b=ctx.rank % 2 == 1).sum() for model in both).backward()
        seen.append([gradients(model) for model in both])
        del held
    return seen


@check("DDP-099", worlds=MANY, beyond=False)
def test_what_an_evaluation_used_does_not_change_the_order_in_which_two_models_are_reduced(ranks):
    world = ranks.world
    a, b = (sum(12.0 * (rank + 1) for rank in some) / world for some in (range(world), range(1, world, 2)))
    for rank, seen in enumerate(ranks(evaluate_more_than_is_trained)):
        assert seen == [[{"a.weight": [a], "b.weight": [b]}] * 2] * 2, f"rank {rank}"
