"""States of a model that few programs enter: each is tried beside what one process computes."""

import atexit
import contextlib
import itertools
import os
import warnings

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import checkpoint

from conformance.api import oracle
from conformance.api.checking import MANY, check
from conformance.fixtures import models
from conformance.fixtures.errors import complains_of_backward, fail
from conformance.fixtures.observing import TINY_MIB, mean_of_all, mine, trained, wrapped
from conformance.fixtures.training import gradients, numbers, private
from conformance.ranks import Caught, caught
from conformance.subjects import NotOffered

VIEWS = {"gradient_as_bucket_view": True}


# -- DDP-049, DDP-062: gradients of one bucket that arrive in another order than before


class Turns(nn.Module):
    """A layer ``first``, and behind it others, by name and in the order that is asked for; twice from a checkpoint."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4, bias=False)
        self.behind = nn.ModuleDict({name: nn.Linear(4, 4, bias=False) for name in "abc"})
        for place, parameter in enumerate(self.parameters()):
            nn.init.constant_(parameter, float(place + 1))

    def forward(self, x, order="abc"):
        x = self.first(x)
        outputs = [
            checkpoint(self.behind[name], x, use_reentrant=True) if order.count(name) > 1 else self.behind[name](x)
            for name in order
        ]
        return torch.stack(outputs).sum(dim=0)


ORDERS = ("abc", "abc", "abc", "bac", "cab", "abc")


def change_the_order(ctx):
    seen = []
    for options in ({}, VIEWS):
        model = wrapped(ctx, Turns(), **options)
        seen.append([trained(model, models.divisible(ctx.rank, n).to(ctx.device), order=order)
                     for n, order in enumerate(ORDERS)])  # fmt: skip
    return seen


@check("DDP-049", "DDP-117", worlds=(1, 2, 3), beyond=False)
def test_gradients_of_a_bucket_may_arrive_in_another_order_than_before(ranks):
    expected = []
    for n in range(len(ORDERS)):
        batches = [models.divisible(rank, n) for rank in range(ranks.world)]
        expected.append(numbers(oracle.averaged_gradients(Turns(), batches, ranks.world).items()))
    for rank, seen in enumerate(ranks(change_the_order)):
        assert seen == [expected] * 2, f"rank {rank}"


def use_one_twice_and_another_never(ctx):
    """As many arrivals as ever, but one layer twice and another not at all: what the iteration and the next raise."""
    model = wrapped(ctx, Turns())
    x = models.divisible(ctx.rank, 0).to(ctx.device)
    for _ in range(3):
        trained(model, x)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return caught(trained, model, x, order="aab") or caught(trained, model, x)


@check("DDP-062", worlds=MANY, beyond=False, deadline_s=10)
def test_a_layer_that_is_left_out_is_missed_though_another_arrives_twice(ranks):
    for rank, error in enumerate(ranks(use_one_twice_and_another_never)):
        assert error is not None, f"rank {rank}: a layer has no gradient, and nobody says so"
        assert error.is_a(RuntimeError), f"rank {rank}: {error}"


# -- DDP-049: a forward that measures its own gradients


class Measuring(nn.Module):
    """Its first answer is the size of its own gradient, of which it leaves nothing behind; the others are outputs."""

    def __init__(self):
        super().__init__()
        self.layer = models.scalar()
        self.measures = True

    def forward(self, x):
        if not self.measures:
            return self.layer(x)
        with torch.enable_grad():
            self.layer(x).sum().backward()
        size = self.layer.weight.grad.abs().sum()
        self.layer.weight.grad = None
        return size


def measure_first(ctx):
    model = wrapped(ctx, Measuring())
    answer = model(mine(ctx)).item()
    model.module.measures = False
    return answer, [trained(model, mine(ctx, n)) for n in (1, 2, 3)]


@check("DDP-049", worlds=(1, *MANY), beyond=False)
def test_a_forward_may_measure_gradients_of_its_own_and_leave_none(ranks):
    """What it measures is its own gradient, or the average of all where a backward inside a forward is reduced."""
    means = [{"layer.weight": [mean_of_all(ranks.world, n)]} for n in (1, 2, 3)]
    for rank, (answer, seen) in enumerate(ranks(measure_first)):
        assert answer in (12.0 * (rank + 1), mean_of_all(ranks.world)), f"rank {rank}"
        assert seen == means, f"rank {rank}"


# -- DDP-049: a transform beside a search for unused parameters


def map_over_rows_with_a_search(ctx):
    """Gradients, or what the first iteration raises."""
    model, seen = wrapped(ctx, models.Branches(), find_unused_parameters=True), []
    for n in range(3):
        model.zero_grad(set_to_none=True)
        rows = mine(ctx, n + 1).expand(2, 1)
        error = caught(lambda rows=rows: torch.func.vmap(lambda x: model(x, with_b=True))(rows).sum().backward())
        if error is not None:
            return error
        seen.append(gradients(model))
    return seen


@check("DDP-049", "DDP-099", worlds=(1, *MANY), beyond=False)
def test_a_model_that_is_searched_may_be_mapped_over_rows(ranks):
    expected = [{name: [2 * mean_of_all(ranks.world, n)] for name in ("a.weight", "b.weight")} for n in (1, 2, 3)]
    for rank, seen in enumerate(ranks(map_over_rows_with_a_search)):
        if isinstance(seen, Caught):
            assert seen.is_a(RuntimeError), f"rank {rank}: {seen}"
            ranks.at_limit("a model that is searched is refused under a transform")
        else:
            assert seen == expected, f"rank {rank}"


# -- DDP-066: hooks that are removed when the buckets have settled, from a model whose outputs tell nothing


class Hiding(nn.Module):
    """Hands its output out where nobody looks for one, if it is asked to."""

    def __init__(self):
        super().__init__()
        self.layer = models.scalar()

    def forward(self, x, hides):
        return models.Opaque(self.layer(x)) if hides else self.layer(x)


def remove_hooks_late(ctx):
    model, seen = wrapped(ctx, Hiding()), []
    for n in range(6):
        if n == 4:
            private(model, "_remove_autograd_hooks")()
        model.zero_grad(set_to_none=True)
        output = model(mine(ctx, n + 1), hides=n >= 4)
        (output.value if n >= 4 else output).sum().backward()
        seen.append(gradients(model)["layer.weight"])
    for _ in range(2):
        model(mine(ctx), hides=True)  # nobody calls its backward, and nobody waits for that
    return seen


@check("DDP-066", worlds=MANY, beyond=False)
def test_hooks_that_are_removed_from_a_model_in_training_stay_away(ranks):
    for rank, seen in enumerate(ranks(remove_hooks_late)):
        assert seen[:4] == [[mean_of_all(ranks.world, n + 1)] for n in range(4)], f"rank {rank}"
        assert seen[4:] == [[12.0 * (rank + 1) * (n + 1)] for n in (4, 5)], f"rank {rank}: hooks are back"


# -- DDP-049: a model that is laid out otherwise right behind a backward that failed


class Images(nn.Module):
    """Two layers for images; no gradient depends on a weight of its own layer, and the weights stay as they are."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Conv2d(2, 2, 2, bias=False) for _ in range(2)])
        for place, parameter in enumerate(self.parameters()):
            nn.init.constant_(parameter, float(place + 1))

    def forward(self, x, apart=False):
        outputs = [layer(x) for layer in self.layers]
        return outputs if apart else torch.stack(outputs).sum(dim=0)


def image(rank, n):
    return 12 * models.integers(1, 2, 3, 3, seed=100 * rank + n)


def fail_then_lay_out_otherwise(ctx):
    """By options: the error that ends it, and the gradients of what was trained."""
    told = []
    for options in ({}, VIEWS, {"bucket_cap_mb": TINY_MIB}, {**VIEWS, "bucket_cap_mb": TINY_MIB}):
        model, seen = wrapped(ctx, Images(), **options), []

        def train(n, model=model, seen=seen):
            seen.append(trained(model, image(ctx.rank, n).to(ctx.device)))

        train(0), train(1)
        with model.module.layers[0].weight.register_hook(fail):
            assert caught(train, 2) is not None
        model.to(memory_format=torch.channels_last)
        told.append((caught(train, 3) or caught(train, 4), seen))
    return told


@check("DDP-049", worlds=(1, *MANY), beyond=False)
def test_a_model_may_be_laid_out_otherwise_right_behind_a_backward_that_failed(ranks):
    expected = []
    for n in (0, 1, 3, 4):
        batches = [image(rank, n) for rank in range(ranks.world)]
        expected.append(numbers(oracle.averaged_gradients(Images(), batches, ranks.world).items()))
    for rank, told in enumerate(ranks(fail_then_lay_out_otherwise)):
        for error, seen in told:
            if error is not None and complains_of_backward(error.text):
                ranks.at_limit("after a backward that failed, the next forward is refused")
                return
            assert error is None, f"rank {rank}: {error}"
            assert seen == expected, f"rank {rank}"


def answer_elsewhere(group, bucket):
    mine = bucket.buffer().div(group.size())
    return dist.all_reduce(mine, group=group, async_op=True).get_future().then(lambda done: done.value()[0])


def lay_out_otherwise_in_between(ctx, hook):
    """Of two outputs of a forward one goes backward before the model is laid out otherwise, the other one behind it."""
    model, seen = wrapped(ctx, Images(), bucket_cap_mb=TINY_MIB), []
    if hook is not None:
        model.register_comm_hook(ctx.group, hook)
    for n in range(5):
        model.zero_grad(set_to_none=True)
        outputs = model(image(ctx.rank, n).to(ctx.device), apart=True)
        if n == 3:
            outputs[0].sum().backward()
            model.to(memory_format=torch.channels_last)
            outputs[1].sum().backward()
        else:
            sum(each.sum() for each in outputs).backward()
        seen.append(gradients(model))
    return seen


@check("DDP-049", worlds=(1, *MANY), beyond=False)
def test_parameters_that_are_laid_out_anew_between_two_backwards_of_a_forward_are_averaged(ranks):
    expected = []
    for n in range(5):
        batches = [image(rank, n) for rank in range(ranks.world)]
        expected.append(numbers(oracle.averaged_gradients(Images(), batches, ranks.world).items()))
    for hook, runs in ranks.each(lay_out_otherwise_in_between, (None, answer_elsewhere)):
        for rank, seen in enumerate(runs):
            assert seen == expected, f"rank {rank}: in between, in new memory, turned, {hook}"


# -- DDP-117: two models with a layer in common, one of which only accumulates


def accumulate_beside(ctx):
    """Whether the gradients of a model share memory, while another one with the same layer accumulates beside it."""
    shared = models.scalar().to(ctx.device)
    synchronised = wrapped(ctx, nn.Sequential(shared, models.scalar()), **VIEWS)
    accumulating = wrapped(ctx, nn.Sequential(shared, models.scalar()))
    seen, together = [], []
    for n in range(4):
        for model in (synchronised, accumulating):
            model.zero_grad(set_to_none=True)
        output = synchronised(mine(ctx, n + 1))
        with accumulating.no_sync(), torch.enable_grad():
            accumulating(mine(ctx, n + 1))  # it is not gone backward from
        output.sum().backward()
        found = [parameter.grad for parameter in synchronised.parameters()]
        seen.append([each.item() for each in found])
        together.append(len({each.untyped_storage().data_ptr() for each in found}) == 1)
    return seen, together[1:]


@check("DDP-117", worlds=(1, *MANY), beyond=False)
def test_gradients_share_memory_beside_a_model_that_only_accumulates(ranks):
    means = [[mean_of_all(ranks.world, n + 1)] * 2 for n in range(4)]
    for rank, (seen, together) in enumerate(ranks(accumulate_beside)):
        assert seen == means, f"rank {rank}"
        assert all(together), f"rank {rank}: gradients lie apart"


# -- DDP-040: backwards past the wrapper


def go_past_the_wrapper(ctx):
    """How many warnings there are of four backwards past a wrapper: under ``no_sync``, at once, and after a forward."""
    told = []
    for behind in ("no_sync", "nothing", "a forward"):
        model = wrapped(ctx, models.scalar())
        if behind == "a forward":
            trained(model, mine(ctx))
            model.zero_grad()
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            with model.no_sync() if behind == "no_sync" else contextlib.nullcontext():
                for _ in range(4):
                    model.module(mine(ctx)).sum().backward()
        told.append((len(heard), model.module.weight.grad.item()))
    return told


@check("DDP-040", worlds=(1, 2), beyond=False)
def test_backwards_past_the_wrapper_are_averaged_or_stay_local_and_are_warned_of_once(ranks):
    for rank, told in enumerate(ranks(go_past_the_wrapper)):
        local, *past = told
        assert local == (0, 48.0 * (rank + 1)), f"rank {rank}: local gradients are meant, and warned of"
        for heard, held in past:
            if ranks.world > 1 and held == 4 * mean_of_all(ranks.world):
                ranks.at_limit("a backward past the wrapper is averaged")
                continue
            assert held == 48.0 * (rank + 1), f"rank {rank}"
            assert heard <= 1, f"rank {rank}: {heard} warnings"
        if not all(heard for heard, _ in past):
            ranks.at_limit("gradients that stay local are no matter for a warning")


def penalise_past_the_wrapper(ctx):
    """The warnings where each backward of a forward is followed by two of penalties on the weights, and where of two
    wrappers around a layer only one trains it."""
    model, shared = wrapped(ctx, models.Sum()), models.scalar()
    training, _idle = wrapped(ctx, shared), wrapped(ctx, shared)
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        for n in range(3):
            trained(model, models.divisible(ctx.rank, n).to(ctx.device))
            for _ in range(2):
                sum(parameter.square().sum() for parameter in model.module.parameters()).backward()
            trained(training, mine(ctx, n + 1))
    return [str(each.message) for each in heard]


@check("DDP-040", worlds=(1, 2), beyond=False)
def test_penalties_on_weights_and_a_layer_of_two_wrappers_are_nothing_to_warn_of(ranks):
    assert ranks(penalise_past_the_wrapper) == [[]] * ranks.world


# -- DDP-062: a program that ends behind a backward that has left a layer out


def end_behind_a_backward(ctx, with_b):
    """The warnings of what a child of this process does when it ends, behind a backward with or without ``b``."""
    model = wrapped(ctx, models.Branches())
    for _ in range(2):
        trained(model, mine(ctx), with_b=True)
    trained(model, mine(ctx), with_b=with_b)
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            with warnings.catch_warnings(record=True) as heard:
                warnings.simplefilter("always")
                atexit._run_exitfuncs()
            os.write(writing, "\n".join(str(each.message) for each in heard).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as told:
        text = told.read()
    os.waitpid(child, 0)
    return text


@check("DDP-062", worlds=(1, 2), backends=("gloo",), beyond=False, deadline_s=10)
def test_a_program_that_ends_behind_an_unfinished_backward_says_so(ranks):
    for text in ranks(end_behind_a_backward, True):
        assert "reduction" not in text
    for text in ranks(end_behind_a_backward, False):
        if "reduction" not in text:
            ranks.at_limit("the last backward of a program is not looked at")


# -- DDP-129: an optimizer in the backward that fails once


class FailsOnce(torch.optim.SGD):
    """Fails in its second step, and in no other."""

    steps = itertools.count()

    def step(self, closure=None):
        if next(FailsOnce.steps) == 1:
            fail()
        return super().step(closure)


def fail_in_a_fused_step(ctx):
    """Weights after each iteration, in the second of which the fused optimizer fails; rank 0 alone goes backward once
    more there, and its gradient."""
    FailsOnce.steps = itertools.count()
    model, seen, refused, again = wrapped(ctx, models.scalar(1000.0)), [], [], None
    if caught(private(model, "_register_fused_optim"), FailsOnce, lr=1.0) is not None:
        raise NotOffered(ctx.subject, "fused optimizers of the user's own")
    for n in range(4):
        model.zero_grad(set_to_none=True)
        loss = model(mine(ctx, n + 1)).sum()
        refused.append(caught(loss.backward, retain_graph=True) is not None)
        if n == 1 and ctx.rank == 0:
            model.zero_grad(set_to_none=True)
            loss.backward()
            again = model.module.weight.grad.item()
        seen.append(model.module.weight.item())
    return seen, refused, again


@check("DDP-133", "DDP-061", worlds=(1, *MANY), beyond=False, deadline_s=10)
def test_after_a_fused_step_that_failed_training_goes_on_and_nothing_is_reduced_twice(ranks):
    weight, right = 1000.0, []
    for n in range(4):
        weight -= 0 if n == 1 else mean_of_all(ranks.world, n + 1)
        right.append(weight)
    for rank, (seen, refused, again) in enumerate(ranks(fail_in_a_fused_step)):
        assert again == (None if rank else 24.0), f"rank {rank}"
        assert refused == [False, True, False, False], f"rank {rank}"
        assert seen == right, f"rank {rank}"
