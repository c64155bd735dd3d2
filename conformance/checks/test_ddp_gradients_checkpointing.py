"""Activation checkpointing under DDP, and checkpoints of weights that move between ranks."""

import warnings

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

from conformance.api.checking import MANY, WORLDS, check
from conformance.fixtures import models
from conformance.fixtures.machines import ensure_one_machine
from conformance.fixtures.training import Job, assert_as_alone, ddp, expected, gradients, numbers, train_each
from conformance.ranks import caught


class Recomputing(nn.Module):
    """Layer ``a`` (``times`` times) and layer ``b``, with what is chosen recomputed in the backward pass."""

    def __init__(self, times=1, reentrant=None, spare=False, only_a=False):
        super().__init__()
        self.a, self.b = models.scalar(2.0), models.scalar(3.0)
        self.times, self.reentrant, self.only_a = times, reentrant, only_a
        if spare:
            self.spare = models.scalar()

    def forward(self, x):
        x = x.clone().requires_grad_()  # a reentrant checkpoint needs an input that requires a gradient
        for _ in range(self.times):
            x = self._run(self.a, x)
        return self.b(x) if self.only_a else self._run(self.b, x)

    def _run(self, layer, x):
        return layer(x) if self.reentrant is None else checkpoint(layer, x, use_reentrant=self.reentrant)


class Recipe:
    """A picklable way to make a ``Recomputing``."""

    def __init__(self, *args, **keywords):
        self.args, self.keywords = args, keywords

    def __call__(self):
        return Recomputing(*self.args, **self.keywords)


def assert_equal_to_plain(ranks, pairs):
    """Each recipe trains three iterations under its options like the same model without recomputing."""
    jobs = [Job(recipe, models.divisible_scalar, (3,) * ranks.world, ddp=o, join=None) for recipe, o in pairs]
    for job, trained in zip(jobs, zip(*ranks(train_each, jobs), strict=True), strict=True):
        keywords = {**job.model.keywords, "reentrant": None}
        assert_as_alone(Job(Recipe(**keywords), job.batch, job.schedule, ddp=job.ddp, join=None), trained)


@check("DDP-067", worlds=WORLDS, beyond=False)
def test_non_reentrant_checkpoints_may_repeat_and_meet_unused_parameters(ranks):
    look = {"find_unused_parameters": True}
    pairs = [
        (Recipe(times=times, reentrant=False, spare=spare), {**options, "bucket_cap_mb": 4e-6})
        for times in (1, 2)
        for spare, options in ((False, {}), (False, look), (True, look), (False, {"static_graph": True}))
    ]
    assert_equal_to_plain(ranks, pairs)


def recompute_the_whole_model(ctx, options, times=2, reentrant=False):
    model = ddp(ctx, Recomputing(times), **options)
    seen = []
    for iteration in range(4):
        model.zero_grad()
        x = models.divisible_scalar(ctx.rank, iteration).requires_grad_()
        with set_checkpoint_early_stop(iteration != 1):  # where that is off, the repeated forward comes to its end
            output = checkpoint(model, x, use_reentrant=reentrant)
        output.sum().backward()
        seen.append(gradients(model))
    return seen


@check("DDP-067", worlds=WORLDS, beyond=False)
def test_a_model_may_be_checkpointed_as_a_whole(ranks):
    averages, _ = expected(Job(Recipe(times=2), models.divisible_scalar, (4,) * ranks.world, join=None))
    several = ({}, {"find_unused_parameters": True}, {"static_graph": True}, {"gradient_as_bucket_view": True})
    for options, told in ranks.each(recompute_the_whole_model, several):
        for rank, seen in enumerate(told):
            assert seen == averages, f"rank {rank} with {options}"


@check("DDP-068", worlds=WORLDS, beyond=False)
def test_a_model_whose_forward_runs_inside_a_backward_is_averaged(ranks):
    averages, _ = expected(Job(Recipe(times=1), models.divisible_scalar, (4,) * ranks.world, join=None))
    for options, told in ranks.each(recompute_the_whole_model, ({}, {"gradient_as_bucket_view": True}), 1, True):
        for rank, seen in enumerate(told):
            assert seen == averages, f"rank {rank} with {options}"


@check("DDP-068", worlds=WORLDS, beyond=False)
def test_reentrant_checkpoints_work_once_per_layer(ranks):
    assert_equal_to_plain(ranks, [(Recipe(times=1, reentrant=True), cap) for cap in ({}, {"bucket_cap_mb": 4e-6})])


def accumulate_reentrantly(ctx):
    """A forward inside no_sync whose backward, outside, has four of its own inside; gradients and warnings."""
    model = ddp(ctx, Recomputing(times=3, reentrant=True))
    x = models.divisible_scalar(ctx.rank, 0)
    with model.no_sync():
        output = model(x)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        output.sum().backward()
    return gradients(model), [str(each.message) for each in told]


@check("DDP-068", "DDP-074", worlds=WORLDS, beyond=False)
def test_reentrant_checkpoints_of_a_forward_inside_no_sync_add_local_gradients_without_a_word(ranks):
    for rank, (seen, told) in enumerate(ranks(accumulate_reentrantly)):
        alone = Recomputing(times=3)
        alone(models.divisible_scalar(rank, 0)).sum().backward()
        assert seen == gradients(alone), f"rank {rank}"
        assert not told, f"rank {rank} is warned: {told}"


def recompute_reentrantly(ctx, recipe, options, since=0):
    """``since``: the iteration from which on checkpoints are reentrant; before, there are none."""
    model = ddp(ctx, recipe(), **options)
    reentrant, seen = model.module.reentrant, []

    def loop():
        for iteration in range(since + 2):
            model.module.reentrant = reentrant if iteration >= since else None
            model.zero_grad()
            model(models.divisible_scalar(ctx.rank, iteration)).sum().backward()
            seen.append(gradients(model))

    error = caught(loop)
    ctx.meet("told")
    return error, seen


@check("DDP-069", worlds=WORLDS)
def test_reentrant_checkpoints_with_a_search_for_unused_parameters_are_averaged_or_end_in_an_error(ranks):
    averages, _ = expected(Job(Recipe(), models.divisible_scalar, (2,) * ranks.world, join=None))
    for recipe in (Recipe(reentrant=True), Recipe(reentrant=True, only_a=True)):  # of all layers, and of one
        told = ranks(recompute_reentrantly, recipe, {"find_unused_parameters": True})
        for rank, (error, seen) in enumerate(told):
            if error is None:
                assert seen == averages, f"rank {rank} has wrong gradients and no error"
            else:
                assert error.is_a(RuntimeError), error
                assert "ready" in error.text.lower(), f"rank {rank}: it does not say what is ready twice: {error}"
                assert seen == averages[: len(seen)], f"rank {rank} has wrong gradients before the error"


@check("DDP-070", worlds=MANY, beyond=False)
def test_one_layer_checkpointed_twice_reentrantly_is_averaged_or_refused(ranks):
    recipe = Recipe(times=2, reentrant=True, only_a=True)
    for since in (0, 3):  # from the first iteration on, and once the buckets have settled
        averages, _ = expected(Job(Recipe(times=2), models.divisible_scalar, (since + 2,) * ranks.world, join=None))
        for rank, (error, seen) in enumerate(ranks(recompute_reentrantly, recipe, {}, since)):
            if error is None:
                assert seen == averages, f"rank {rank} has wrong gradients and no error"
            else:
                assert error.is_a(RuntimeError)
                assert seen == averages[: len(seen)], f"rank {rank}"
                assert "checkpoint" in error.text.lower() or "ready" in error.text.lower()


def save_and_load(ctx, path):
    ensure_one_machine(ctx, "a file of rank 0 is read by every rank")
    torch.manual_seed(ctx.rank)
    model = ddp(ctx, nn.Linear(3, 2))
    if ctx.rank == 0:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_(models.integers(*parameter.shape, seed=7))
        torch.save(model.state_dict(), path)
    ctx.meet("saved")
    model.load_state_dict(torch.load(path, map_location=ctx.device))
    placed = {parameter.device == ctx.device for parameter in model.parameters()}
    model(torch.full((1, 3), 12.0 * (ctx.rank + 1))).sum().backward()
    return numbers(model.module.named_parameters()), placed, gradients(model)


@check("DDP-071", worlds=MANY, beyond=False)
def test_a_checkpoint_of_one_rank_loads_on_all_onto_their_own_devices(ranks, tmp_path):
    mean = 12 * sum(range(1, ranks.world + 1)) / ranks.world
    for weights, placed, held in ranks(save_and_load, str(tmp_path / "weights.pt")):
        assert weights["weight"] == models.integers(2, 3, seed=7).flatten().tolist()
        assert weights["bias"] == models.integers(2, seed=7).tolist()
        assert placed == {True}
        assert held["weight"] == [mean] * 6
