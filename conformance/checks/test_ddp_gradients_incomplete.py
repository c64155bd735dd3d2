"""Backward passes that DDP cannot complete or never sees: what is said, when, and what the gradients are meanwhile."""

import re

import torch
from torch import nn

from conformance.api.checking import MANY, WORLDS, check
from conformance.fixtures import models
from conformance.fixtures.training import EVERY_WAY, ddp, gradient, private, whole
from conformance.ranks import caught


def mean_of(ranks, factor=12.0):
    return factor * sum(range(1, ranks.world + 1)) / ranks.world


def backward_twice(ctx):
    model = ddp(ctx, models.scalar())
    loss = model(12 * models.place(ctx.rank, 0)).sum()
    loss.backward(retain_graph=True)
    first = gradient(model.module.weight)
    error = caught(loss.backward)
    ctx.meet("told")
    return first, error, gradient(model.module.weight)


@check("DDP-061", worlds=MANY, beyond=False)
def test_a_second_backward_through_one_forward_averages_adds_locally_or_is_refused(ranks):
    mean = mean_of(ranks)
    told = ranks(backward_twice)
    assert [first for first, _, _ in told] == [mean] * ranks.world
    if all(error is None and after == mean + 12.0 * (rank + 1) for rank, (_, error, after) in enumerate(told)):
        ranks.at_limit("a second backward through the same forward adds local gradients")
        return
    for _, error, after in told:
        assert after == 2 * mean if error is None else error.is_a(RuntimeError)


class Partial(nn.Module):
    """Scalar layers, by number; a forward leaves out those that it is told to."""

    def __init__(self, layers):
        super().__init__()
        self.layers = nn.ModuleList([models.scalar() for _ in range(layers)])

    def forward(self, x, without=()):
        parts = [layer(x) for index, layer in enumerate(self.layers) if index not in without]
        return torch.stack(parts).sum()


def leave_out(ctx, without, layers=4):
    model = ddp(ctx, Partial(layers))
    x = 12 * models.place(ctx.rank, 0)
    model(x, without).backward()
    held = [None if layer.weight.grad is None else whole(layer.weight.grad).item() for layer in model.module.layers]
    with torch.no_grad():
        model(x)  # which has nothing to complain of
    error = caught(model, x)
    ctx.meet("told")
    return error, held


@check("DDP-062", worlds=WORLDS)
def test_a_parameter_without_gradient_is_reported_at_the_next_forward_on_every_rank(ranks):
    for rank, (error, _) in enumerate(ranks(leave_out, (23, 31), 40)):  # numbers that are nobody's rank
        assert error is not None, f"the next forward of rank {rank} raised nothing"
        assert error.is_a(RuntimeError), error
        assert "find_unused_parameters" in error.text
        for index in (23, 31):
            assert re.search(rf"\b{index}\b", error.text), f"parameter {index} is missing: {error.text}"
        assert not re.search(r"\b22\b", error.text), f"parameter 22 had a gradient: {error.text}"


def thaw_the_next(model):
    model.module.layers[3].requires_grad_(True)


def cast(model):
    model.double()


def cast_past_the_wrapper(model):
    model.module.double()


def leave_out_and_change(ctx, change):
    """Of four layers the last is frozen when the model is wrapped; the error behind an iteration without the second."""
    layers = Partial(4)
    layers.layers[3].requires_grad_(False)
    model = ddp(ctx, layers)
    x = 12 * models.place(ctx.rank, 0)
    model(x).backward()
    model(x, (1,)).backward()
    change(model)
    error = caught(model, x.to(layers.layers[0].weight.dtype))
    ctx.meet("told")
    return error


@check("DDP-062", worlds=WORLDS, scenarios={act.__name__: act for act in (thaw_the_next, cast, cast_past_the_wrapper)})
def test_a_parameter_without_gradient_is_reported_also_where_the_model_has_changed_since(ranks, scenario):
    for rank, error in enumerate(ranks(leave_out_and_change, scenario)):
        assert error is not None, f"the next forward of rank {rank} raised nothing"
        assert error.is_a(RuntimeError), error
        assert "find_unused_parameters" in error.text, error.text


def leave_out_after_accumulating(ctx):
    model = ddp(ctx, Partial(4), bucket_cap_mb=1e-6)  # a bucket for each
    x = 12 * models.place(ctx.rank, 0)
    for _ in range(2):
        model(x).backward()
    with model.no_sync():
        model(x).backward()
    model(x, (1, 2)).backward()
    error = caught(model, x)
    ctx.meet("told")
    return error


@check("DDP-062", worlds=WORLDS)
def test_what_was_accumulated_before_does_not_stand_for_a_gradient_that_is_missing(ranks):
    for rank, error in enumerate(ranks(leave_out_after_accumulating)):
        assert error is not None, f"the next forward of rank {rank} raised nothing"
        assert error.is_a(RuntimeError), error
        assert "find_unused_parameters" in error.text


def leave_out_before_accumulating(ctx, without):
    """One layer has no gradient; what comes next is a forward inside no_sync, and its backward if it is not refused."""
    model = ddp(ctx, Partial(4), bucket_cap_mb=1e-6)
    x = 12 * models.place(ctx.rank, 0)
    model(x, (2,)).backward()
    before = len(ctx.trace())
    with model.no_sync():
        error = caught(lambda: model(x, without).backward())
    sent = len(ctx.trace()) - before
    ctx.meet("told")
    return error, sent


@check("DDP-062", "DDP-072", worlds=WORLDS, deadline_s=5)
def test_a_missing_gradient_is_reported_by_a_forward_inside_no_sync_and_not_made_up_there(ranks):
    for without in ((), (0, 1, 3)):
        for rank, (error, sent) in enumerate(ranks(leave_out_before_accumulating, without, trace=True)):
            assert sent == 0, f"rank {rank} sent something inside no_sync"
            assert error is not None, f"rank {rank} was not told"
            assert error.is_a(RuntimeError)
            assert "find_unused_parameters" in error.text, error.text


@check("DDP-062", worlds=(1, 2))
def test_with_details_the_error_names_the_parameter(ranks):
    for error, _ in ranks(leave_out, (1, 3), env={"TORCH_DISTRIBUTED_DEBUG": "INFO"}):
        assert error is not None, "the next forward raised nothing"
        assert "layers.1.weight" in error.text
        assert "layers.3.weight" in error.text
        assert "layers.2.weight" not in error.text


@check("DDP-064", worlds=MANY, beyond=False)
def test_until_that_error_gradients_are_averaged_local_or_absent_but_never_mixed(ranks):
    mean = mean_of(ranks)
    for rank, (error, held) in enumerate(ranks(leave_out, (2,))):
        absent = held[2] is None or (error is None and held[2] == 0)
        assert absent, f"rank {rank}: what nobody used has the gradient {held[2]}, and the error was {error}"
        assert {held[0], held[1], held[3]} <= {mean, 12.0 * (rank + 1)}, f"rank {rank} has {held}, the mean is {mean}"
        if error is None:
            assert {held[0], held[1], held[3]} == {mean}, "an incomplete iteration that is no error must be averaged"
        if 12.0 * (rank + 1) in held:
            ranks.at_limit("in an incomplete iteration gradients may be local until the next forward raises")


def check_completeness(ctx, without):
    model = ddp(ctx, Partial(4))
    model(12 * models.place(ctx.rank, 0), without).backward()
    error = caught(private(model, "_check_reducer_finalized"))
    ctx.meet("told")
    return error


@check("DDP-063", worlds=WORLDS)
def test_asked_after_backward_completeness_raises_at_once_or_returns_quietly(ranks):
    assert ranks(check_completeness, ()) == [None] * ranks.world
    for rank, error in enumerate(ranks(check_completeness, (0,))):
        assert error is not None, f"asked on rank {rank} about an incomplete reduction, it raised nothing"
        assert error.is_a(RuntimeError), error
        assert "find_unused_parameters" in error.text


def differentiate(ctx):
    model = ddp(ctx, models.scalar())
    loss = model(12 * models.place(ctx.rank, 0)).sum()
    (mine,) = torch.autograd.grad(loss, [model.module.weight])
    untouched = model.module.weight.grad is None
    model(12 * models.place(ctx.rank, 0)).sum().backward()  # and the next ordinary iteration is in order
    return mine.item(), untouched, gradient(model.module.weight)


@check("DDP-065", worlds=MANY, beyond=False)
def test_functional_gradients_are_local_or_averaged_and_leave_grad_alone(ranks):
    mean = mean_of(ranks)
    for rank, (mine, untouched, after) in enumerate(ranks(differentiate)):
        assert untouched, f"rank {rank}: torch.autograd.grad has left something in .grad"
        assert after == mean
        assert mine in (mean, 12.0 * (rank + 1))
        if mine != mean:
            ranks.at_limit("torch.autograd.grad returns local gradients")


def remove_hooks_in_every_way(ctx):
    return [remove_hooks(ctx, options) for options in EVERY_WAY]


def remove_hooks(ctx, options):
    model = ddp(ctx, models.Sum(), bucket_cap_mb=1e-4, **options)
    model(models.divisible(ctx.rank, 0)).sum().backward()
    private(model, "_remove_autograd_hooks")()
    model.float().zero_grad()  # moving or casting a model does not bring its hooks back
    start = len(ctx.trace())
    loss = model(models.divisible(ctx.rank, 1)).sum()
    forward = len(ctx.trace())
    loss.backward()
    held = whole(model.module.layers[1].weight.grad).tolist()
    return held, start, len(ctx.trace()) - forward


@check("DDP-066", worlds=MANY)
def test_without_its_hooks_backward_is_local_and_communicates_nothing(ranks):
    for rank, told in enumerate(ranks(remove_hooks_in_every_way, trace=True)):
        alone = models.Sum()
        alone(models.divisible(rank, 1)).sum().backward()
        for options, (held, before, sent) in zip(EVERY_WAY, told, strict=True):
            assert held == alone.layers[1].weight.grad.tolist(), options
            assert before > 0, "the collective trace recorded nothing at all"
            assert sent == 0, options
