"""Static graphs: what they find out by themselves, what they allow and refuse, and when they may be asked for."""

import itertools
import warnings
from contextlib import nullcontext

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from conformance.api import oracle
from conformance.api.checking import MANY, check
from conformance.fixtures import models
from conformance.fixtures.observing import (
    TINY_MIB,
    about,
    assert_refused,
    mean_of_all,
    mine,
    reduced_elements,
    show_reductions,
    started,
    trained,
    warned,
    wrapped,
)
from conformance.fixtures.training import average_of_parts, gradients, numbers, private
from conformance.ranks import caught

CAPS = {"several buckets": TINY_MIB, "one bucket": None}


def batch(ctx, iteration):
    return models.divisible(ctx.rank, iteration).to(ctx.device)


# -- DDP-105, DDP-110: unused parameters, the first iteration


def train_parts(ctx, uses, cap):
    model = wrapped(ctx, models.Parts(), static_graph=True, bucket_cap_mb=cap)
    model.module.use = uses[ctx.rank]
    return [trained(model, batch(ctx, iteration)) for iteration in range(4)]  # with new buckets after the first ones


@check("DDP-105", scenarios=CAPS)
def test_parameters_that_nobody_ever_uses_are_left_alone(ranks, scenario):
    uses = ["ac"] * ranks.world
    expected = [average_of_parts(uses, iteration) for iteration in range(4)]
    assert expected[0]["parts.b.weight"] is None
    assert ranks(train_parts, uses, scenario) == [expected] * ranks.world


@check("DDP-105", worlds=MANY)
def test_parameters_that_some_ranks_never_use_get_the_sum_of_the_others(ranks):
    uses = ["abc" if rank == ranks.world - 1 else "a" for rank in range(ranks.world)]
    expected = [average_of_parts(uses, iteration) for iteration in range(4)]
    assert ranks(train_parts, uses, TINY_MIB) == [expected] * ranks.world


LOCAL = 3  # the iteration that is not synchronised


def train_on_one_output(ctx):
    model = wrapped(ctx, models.Parts(), static_graph=True, bucket_cap_mb=TINY_MIB)
    model.module.shape = lambda outputs: (outputs["a"], [outputs["b"], outputs["c"]])
    seen = []
    for iteration in range(5):
        model.zero_grad(set_to_none=True)
        with model.no_sync() if iteration == LOCAL else nullcontext():
            a, (_, c) = model(batch(ctx, iteration))
        (a + c).sum().backward()
        seen.append(gradients(model))
    return seen


@check("DDP-105", "DDP-114")
def test_outputs_that_are_never_in_the_loss_leave_no_gradient(ranks):
    expected = [average_of_parts(["ac"] * ranks.world, iteration) for iteration in range(5)]
    one = models.Parts()
    one.use = "ac"
    for rank, seen in enumerate(ranks(train_on_one_output)):
        local = oracle.local_gradients(one, models.divisible(rank, LOCAL))
        expected[LOCAL] = numbers((name, local.get(name)) for name, _ in one.named_parameters())
        assert seen == expected, f"rank {rank}"


def keep_an_old_gradient(ctx):
    """Of outputs that are never in the loss: the gradients, which their part has had since before it was wrapped."""
    model = models.Parts()
    for parameter in model.parts["b"].parameters():
        parameter.grad = torch.full_like(parameter, 7.0 + ctx.rank)
    model = wrapped(ctx, model, static_graph=True, bucket_cap_mb=TINY_MIB)
    model.module.shape = lambda outputs: (outputs["a"] + outputs["c"], outputs["b"])
    seen = []
    for iteration in range(4):
        for name in "ac":
            model.module.parts[name].zero_grad(set_to_none=True)
        model(batch(ctx, iteration))[0].sum().backward()
        seen.append(gradients(model))
    return seen


@check("DDP-105", worlds=MANY)
def test_an_old_gradient_does_not_make_an_output_that_is_never_in_the_loss_a_used_one(ranks):
    for rank, seen in enumerate(ranks(keep_an_old_gradient)):
        for iteration, found in enumerate(seen):
            expected = average_of_parts(["ac"] * ranks.world, iteration)
            old = {"parts.b.weight": [7.0 + rank] * 16, "parts.b.bias": [7.0 + rank] * 4}
            assert found == expected | old, f"rank {rank}, iteration {iteration}"


def train_on_two_outputs(ctx):
    model = wrapped(ctx, models.Parts(), static_graph=True, bucket_cap_mb=TINY_MIB)
    model.module.shape = lambda outputs: (outputs["a"] + outputs["b"], outputs["c"])
    told = []
    for iteration in range(3):
        model.zero_grad(set_to_none=True)
        one, two = model(batch(ctx, iteration))
        told.append(reduced_elements(started(ctx, (one.sum() + two.sum()).backward)))
        told.append(gradients(model))
    return told


@check("DDP-110", worlds=MANY)
def test_the_first_iteration_reduces_everything_once_and_right(ranks):
    layer = 20  # elements: more than marks and padding have that travel along with the three layers
    ranks(show_reductions, trace=True)
    for told in ranks(train_on_two_outputs, trace=True):
        assert told[1::2] == [average_of_parts(["abc"] * ranks.world, iteration) for iteration in range(3)]
        counts = told[::2]
        assert all(3 * layer <= count < 4 * layer for count in counts), f"elements reduced in each backward: {counts}"


def train_on_slopes(model, x, only):
    """The gradients of a loss and of its slopes in the inputs, or only of the slopes, which depend on no bias."""
    model.zero_grad(set_to_none=True)
    loss = model(x.requires_grad_()).sum()
    (slopes,) = torch.autograd.grad(loss, x, create_graph=True)
    ((slopes * x.detach()).sum() if only else loss + slopes.sum()).backward()
    return {name: p.grad for name, p in getattr(model, "module", model).named_parameters()}


def train_static_on_slopes(ctx):
    seen = []
    for only in (False, True):
        model = wrapped(ctx, models.Sum(), static_graph=True)
        seen += [numbers(train_on_slopes(model, batch(ctx, iteration), only).items()) for iteration in range(3)]
    return seen


@check("DDP-110", worlds=MANY)
def test_slopes_that_are_taken_before_the_backward_do_not_end_the_first_iteration(ranks):
    expected = []
    for only, iteration in itertools.product((False, True), range(3)):
        alone = [train_on_slopes(models.Sum(), models.divisible(rank, iteration), only) for rank in range(ranks.world)]
        means = {name: None if found is None else sum(each[name] for each in alone) / ranks.world
                 for name, found in alone[0].items()}  # fmt: skip
        expected.append(numbers(means.items()))
    assert ranks(train_static_on_slopes) == [expected] * ranks.world


# -- DDP-106: a graph that does not stay the same


def forward(model, x, outputs):
    outputs.append(model(x))


def change_the_graph(ctx, first, then, inside=False):
    """When an iteration that uses other parts raises, and what; ``inside``: that one runs under no_sync."""
    model = wrapped(ctx, models.Parts(), static_graph=True, bucket_cap_mb=TINY_MIB)
    for iteration, used in enumerate((first, first, then, first)):
        model.module.use = used
        model.zero_grad()
        outputs = []
        with model.no_sync() if inside and used == then else nullcontext():
            error = caught(forward, model, batch(ctx, iteration), outputs)
        if error is not None:
            return iteration, "forward", error
        error = caught(outputs[0].sum().backward)
        if error is not None:
            return iteration, "backward", error
    return "no error"


@check("DDP-106", worlds=(1, 2, 3), deadline_s=5)
def test_using_what_was_unused_at_first_raises_in_that_backward(ranks):
    told = ranks(change_the_graph, "ac", "abc")
    assert [each[:2] for each in told] == [(2, "backward")] * ranks.world, told
    assert_refused([error for *_, error in told], RuntimeError)


@check("DDP-106", worlds=(1, 2), beyond=False, deadline_s=5)
def test_using_it_under_no_sync_raises_in_that_backward_too(ranks):
    assert ranks.subject.PeerFailed  # torch looks at what it reduces only
    told = ranks(change_the_graph, "ac", "abc", True)
    assert [each[:2] for each in told] == [(2, "backward")] * ranks.world, told


@check("DDP-106", worlds=(1, 2, 3), deadline_s=5)
def test_leaving_out_what_was_used_at_first_raises_at_the_next_forward(ranks):
    told = ranks(change_the_graph, "abc", "ac")
    assert [each[:2] for each in told] == [(3, "forward")] * ranks.world, told
    assert_refused([error for *_, error in told], RuntimeError)


def go_further(ctx, options, since):
    """Since some iteration a second backward of each forward reaches the part that the first one leaves out."""
    model, told = wrapped(ctx, models.Parts(), **options), []
    model.module.use, model.module.shape = "ab", lambda outputs: list(outputs.values())

    def train():
        for iteration in range(since + 2):
            model.zero_grad()
            one, other = model(batch(ctx, iteration))
            one.sum().backward(retain_graph=True)
            if iteration >= since:
                other.sum().backward()
                told.append(gradients(model))

    return caught(train) or told


LATER = {
    f"{how}, since iteration {since}": ({option: True}, since)
    for how, option in (("static", "static_graph"), ("searched", "find_unused_parameters"))
    for since in (0, 4)
}


@check("DDP-106", worlds=(1, 2), scenarios=LATER, deadline_s=5)
def test_a_second_backward_that_goes_further_than_the_first_raises_or_is_averaged(ranks, scenario):
    options, since = scenario
    told = ranks(go_further, options, since)
    if isinstance(told[0], list):
        right = [average_of_parts(["ab"] * ranks.world, since + later) for later in range(2)]
        for rank, seen in enumerate(told):
            assert seen == right, f"rank {rank} has gradients that are no averages, and was not told"
    else:
        assert_refused(told, RuntimeError)


# -- DDP-107, DDP-108, DDP-109: when it is asked for


def ask_again(ctx):
    model = wrapped(ctx, models.Parts(), static_graph=True)
    model.module.use = "ab"
    heard = warned(private(model, "_set_static_graph"))
    seen = [trained(model, batch(ctx, iteration)) for iteration in range(3)]
    return about(heard, "UserWarning", "static_graph"), seen


@check("DDP-107", worlds=(1, 2))
def test_asking_a_second_time_only_warns(ranks):
    expected = [average_of_parts(["ab"] * ranks.world, iteration) for iteration in range(3)]
    for heard, seen in ranks(ask_again):
        assert len(heard) == 1
        assert seen == expected


def ask_again_in_mid_training(ctx):
    model = wrapped(ctx, models.Parts(), static_graph=True, bucket_cap_mb=TINY_MIB)
    model.module.use = "ac"
    for iteration in range(3):
        trained(model, batch(ctx, iteration))
    heard = warned(private(model, "_set_static_graph"))
    model.module.use = "abc"
    return len(about(heard, "UserWarning", "static_graph")), caught(lambda: model(batch(ctx, 3)).sum().backward())


@check("DDP-107", worlds=(1, 2), deadline_s=5)
def test_asking_again_in_mid_training_forgets_nothing_of_the_first_iteration(ranks):
    told = ranks(ask_again_in_mid_training)
    assert [heard for heard, _ in told] == [1] * ranks.world
    assert_refused([error for _, error in told], RuntimeError)


def ask_for_both(ctx):
    built = []
    options = {"static_graph": True, "find_unused_parameters": True}
    heard = warned(lambda: built.append(wrapped(ctx, models.Parts(), **options)))
    built[0].module.use = "bc"
    seen = [trained(built[0], batch(ctx, iteration)) for iteration in range(3)]
    return about(heard, "UserWarning", "find_unused_parameters"), seen


@check("DDP-108", worlds=(1, 2, 3))
def test_asking_for_unused_parameters_too_warns_and_works(ranks):
    expected = [average_of_parts(["bc"] * ranks.world, iteration) for iteration in range(3)]
    for heard, seen in ranks(ask_for_both):
        assert len(heard) == 1
        assert seen == expected


def ask_late(ctx, go_on):
    model = wrapped(ctx, models.Parts())
    first = trained(model, batch(ctx, 0))
    error = caught(private(model, "_set_static_graph"))
    return error, [first, trained(model, batch(ctx, 1))] if go_on else [first]


@check("DDP-109", worlds=(1, 2))
def test_after_the_first_training_forward_it_is_too_late(ranks):
    assert_refused([error for error, _ in ranks(ask_late, False)], RuntimeError)


@check("DDP-109", worlds=(1, 2))
def test_a_request_that_came_too_late_leaves_the_model_as_it_was(ranks):
    for _, seen in ranks(ask_late, True):
        assert seen == [average_of_parts(["abc"] * ranks.world, iteration) for iteration in range(2)]


def ask_in_time(ctx):
    model = wrapped(ctx, models.Parts(), bucket_cap_mb=TINY_MIB)
    for mode in (torch.no_grad, torch.inference_mode):  # to evaluate is not to train
        with mode():
            model(batch(ctx, 0))
    private(model, "_set_static_graph")()
    model.module.use = "ab"
    return [trained(model, batch(ctx, iteration)) for iteration in range(3)]


@check("DDP-109", "DDP-105", worlds=(1, 2, 3))
def test_before_the_first_training_forward_it_is_in_time(ranks):
    expected = [average_of_parts(["ab"] * ranks.world, iteration) for iteration in range(3)]
    assert ranks(ask_in_time) == [expected] * ranks.world


# -- DDP-111: what a static graph newly allows


class Checkpointed(nn.Module):
    """One layer, checkpointed ``times`` times, beside a layer that is not used."""

    def __init__(self, times, reentrant, width=1):
        super().__init__()
        self.a, self.b = nn.Linear(1, width, bias=False), models.scalar()
        nn.init.ones_(self.a.weight)
        self.times, self.reentrant = times, reentrant

    def forward(self, x):
        x = x.clone().requires_grad_()  # a reentrant checkpoint needs an input with a gradient
        parts = [checkpoint(self.a, x, use_reentrant=self.reentrant) for _ in range(self.times)]
        return torch.stack(parts).sum(dim=0)


def train_checkpointed(ctx, times, reentrant):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = wrapped(ctx, Checkpointed(times, reentrant), static_graph=True, bucket_cap_mb=1e-6)
        return [trained(model, mine(ctx)) for _ in range(3)]


@check("DDP-111", worlds=(1, 2, 3))
def test_checkpoints_of_one_layer_and_unused_parameters_are_right(ranks):
    for (times, reentrant), told in ranks.each(train_checkpointed, ((1, True), (2, True), (3, False)), spread=True):
        expected = {"a.weight": [times * mean_of_all(ranks.world)], "b.weight": None}
        assert told == [[expected] * 3] * ranks.world, f"{times=}, {reentrant=}"


WIDE = 64  # more elements than marks and padding have that travel along


def train_around_nested_backwards(ctx):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = wrapped(ctx, Checkpointed(2, True, WIDE), static_graph=True)
        told = []
        for _ in range(3):
            model.zero_grad(set_to_none=True)
            told.append(reduced_elements(started(ctx, model(mine(ctx)).sum().backward)))
            told.append(gradients(model)["a.weight"])
        return told


@check("DDP-110", worlds=(2, 3))
def test_backwards_inside_of_backward_do_not_end_the_first_iteration(ranks):
    ranks(show_reductions, trace=True)
    for told in ranks(train_around_nested_backwards, trace=True):
        assert told[1::2] == [[2 * mean_of_all(ranks.world)] * WIDE] * 3
        counts = told[::2]
        assert all(WIDE <= count < 2 * WIDE for count in counts), f"elements reduced in each backward: {counts}"


def use_outside_forward(ctx):
    model = wrapped(ctx, models.Branches(), static_graph=True, bucket_cap_mb=1e-6)
    seen = []
    for _ in range(3):
        model.zero_grad()
        out = model(mine(ctx), with_b=True)
        (out + 2 * model.module.a.weight * mine(ctx)).sum().backward()
        seen.append(gradients(model))
    return seen


@check("DDP-111", worlds=(1, 2, 3))
def test_parameters_used_outside_forward_are_right(ranks):
    mean = mean_of_all(ranks.world)
    assert ranks(use_outside_forward) == [[{"a.weight": [3 * mean], "b.weight": [mean]}] * 3] * ranks.world
