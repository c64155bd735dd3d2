"""What is left of a model: nothing once it is dropped, and a warning where its backward goes past the wrapper."""

import gc
import warnings
import weakref

from torch import nn

from conformance.api.checking import MANY, WORLDS, check
from conformance.fixtures import models
from conformance.fixtures.observing import mean_of_all, mine, wrapped
from conformance.ranks import caught

TINY_MIB = 1e-5

# -- DDP-174: a dropped model is freed


def train_and_drop(ctx, steps, options):
    """Which of a model's tensors outlive it; ``steps``: how many backwards it makes, the last of them local."""
    model = wrapped(ctx, models.Sum(3), bucket_cap_mb=TINY_MIB, **options)
    for step in range(steps):
        if step == steps - 1:
            with model.no_sync():
                model(models.divisible(ctx.rank, step).to(ctx.device)).sum().backward()
        else:
            model(models.divisible(ctx.rank, step).to(ctx.device)).sum().backward()
    held = {name: weakref.ref(each) for name, each in model.named_parameters()}
    held |= {f"{name}.grad": weakref.ref(each.grad) for name, each in model.named_parameters()}
    held["the model"] = weakref.ref(model)
    del model
    gc.collect()
    return [name for name, found in held.items() if found() is not None]


OPTIONS = {
    "copies": {},
    "views": {"gradient_as_bucket_view": True},
    "search": {"find_unused_parameters": True},
    "static": {"static_graph": True},
}


@check("DDP-174", worlds=WORLDS, beyond=False, scenarios=OPTIONS)
def test_parameters_and_gradients_go_with_a_model_that_is_dropped(ranks, scenario):
    for steps, told in ranks.each(train_and_drop, (2, 5), scenario):
        assert told == [[]] * ranks.world, f"{steps} backwards"


class Remembering(nn.Module):
    """Knows, weakly, what its last forward keeps for its backward."""

    def __init__(self):
        super().__init__()
        self.first, self.last = models.scalar(), models.scalar()

    def forward(self, x):
        between = self.first(x)
        self.kept = weakref.ref(between)
        return self.last(between).relu()


def keep_graphs(ctx, options):
    """Whether what a forward has kept is there once a backward that keeps the graph has run."""
    model, there = wrapped(ctx, Remembering(), **options), []
    for _ in range(4):
        model(mine(ctx)).sum().backward(retain_graph=True)
        gc.collect()
        there.append(model.module.kept() is not None)
    return there


@check("DDP-174", worlds=(1, 2), beyond=False)
def test_nothing_of_a_graph_outlives_the_backward_that_has_kept_it(ranks):
    for options, told in ranks.each(keep_graphs, list(OPTIONS.values())):
        assert told == [[False] * 4] * ranks.world, options


# -- DDP-040: a loss that the wrapped module makes itself


class Losing(nn.Module):
    """Makes its own loss, past the forward of whatever wraps it."""

    def __init__(self):
        super().__init__()
        self.a = models.scalar()

    def forward(self, x):
        return self.a(x)

    def extra_loss(self, x):
        return self(x).sum()


def train_past_the_wrapper(ctx):
    model = wrapped(ctx, Losing())
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        failed = caught(lambda: model.extra_loss(mine(ctx)).backward())
    return failed, [] if failed else model.module.a.weight.grad.flatten().tolist(), len(told)


@check("DDP-040", worlds=MANY)
def test_gradients_of_a_loss_past_the_wrapper_are_averaged_or_a_warning_says_that_they_are_not(ranks):
    for rank, (failed, gradient, told) in enumerate(ranks(train_past_the_wrapper)):
        assert failed is None, f"rank {rank}: {failed}"
        averaged = gradient == [mean_of_all(ranks.world)]
        assert averaged or told, f"rank {rank} keeps its own gradient, {gradient}, without a word"
