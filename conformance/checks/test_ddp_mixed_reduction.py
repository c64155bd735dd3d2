"""Native mixed precision between the ranks: the dtype on the way, accumulation, and what it does not go with."""

import itertools
from contextlib import nullcontext

import pytest
import torch
from torch import nn

from conformance.api import oracle
from conformance.api.checking import MANY, WORLDS, NotRun, check
from conformance.fixtures import models
from conformance.fixtures.comm_hooks import done
from conformance.fixtures.observing import (
    TINY_MIB,
    asks_for_accelerator,
    assert_refused,
    lowered,
    mean_of_all,
    mine,
    mixed,
    or_lacks_accelerator,
    said,
    started,
    trained,
    wrapped,
)
from conformance.fixtures.training import gradients, numbers, whole
from conformance.ranks import caught
from conformance.subjects import Unsupported

LOW, HALF, FULL = torch.bfloat16, torch.float16, torch.float32

# -- DDP-136: the dtype on the way


def reduce_low(ctx, config, x, move=None):
    def run():
        model = mixed(ctx, models.scalar(), config)
        value = x[0] if ctx.rank == 0 else x[1]
        if move is not None:
            model(torch.full((1, 1), 5 * value, device=ctx.device)).sum().backward()
            move(model, ctx.device)
            model.zero_grad()
        events = started(ctx, lambda: model(torch.full((1, 1), value, device=ctx.device)).sum().backward())
        sent = {event.dtype for event in events if event.op in ("all_reduce", "reduce_scatter")}
        return sent, model.module.weight.grad.dtype, whole(model.module.weight.grad).item()

    return or_lacks_accelerator(ctx, run)


def to_where_it_is(model, device):
    model.to(device)  # nothing changes


def cast_and_back(model, _device):
    model.double()
    model.float()


REDUCED = {
    "as asked": ({"param_dtype": HALF, "reduce_dtype": FULL}, FULL),
    "as parameters": ({"param_dtype": HALF}, HALF),
    "reduction only": ({"reduce_dtype": LOW}, LOW),
    "untouched": ({"buffer_dtype": LOW}, FULL),
}


def reduce_thawed(ctx):
    """A part that is frozen at wrapping is trained later: the gradients, and the dtypes in which they travel then.

    It is thawed between a forward whose backward never comes and the next one.
    """

    def run():
        told = []
        for config in ({"reduce_dtype": LOW}, {"param_dtype": LOW}):
            module = models.Branches()
            module.b.requires_grad_(False)
            model = mixed(ctx, module, config)
            for iteration in range(4):
                if iteration == 1:
                    model(mine(ctx), with_b=True)
                module.b.requires_grad_(iteration > 0)
                events = started(ctx, lambda model=model: told.append(trained(model, mine(ctx), with_b=True)))
                sent = {event.dtype for event in events if event.op in ("all_reduce", "reduce_scatter")}
                told.append(sent & {"float32", "float16", "bfloat16"})
        return told

    return or_lacks_accelerator(ctx, run)


@check("DDP-136", worlds=MANY, beyond=False)
def test_gradients_of_a_part_that_is_thawed_travel_as_low_as_the_others(ranks):
    mean = [mean_of_all(ranks.world)]
    before, after = ({"a.weight": mean, "b.weight": of_b} for of_b in (None, mean))
    expected = [before, {"bfloat16"}, *[after, {"bfloat16"}] * 3] * 2
    assert ranks(reduce_thawed, trace=True) == [expected] * ranks.world


def keep_gradients_in_full(ctx):
    """Of a low parameter whose gradients the program keeps in full: dtype and value of the average."""

    def run():
        module = models.scalar().to(ctx.device, LOW)
        if not hasattr(module.weight, "grad_dtype"):
            raise Unsupported("this torch has no grad_dtype")
        module.weight.grad_dtype = FULL
        model, told = mixed(ctx, module, {"reduce_dtype": FULL}), []
        for sync in (False, True):
            with nullcontext() if sync else model.no_sync():
                model(mine(ctx).to(LOW)).sum().backward()
            told.append((module.weight.grad.dtype, module.weight.grad.item()))
        return told

    return or_lacks_accelerator(ctx, run)


@check("DDP-136", worlds=MANY, beyond=False)
def test_gradients_that_a_program_keeps_in_full_arrive_in_full(ranks):
    for rank, told in enumerate(ranks(keep_gradients_in_full)):
        assert told == [(FULL, 12.0 * (rank + 1)), (FULL, 2 * mean_of_all(ranks.world))], f"rank {rank}"


def reduce_each(ctx):
    """By configuration and what is done to the model after an iteration: what is sent then, and what arrives."""
    ways = itertools.product(REDUCED, (None, to_where_it_is, cast_and_back))
    return {(name, str(move)): reduce_low(ctx, REDUCED[name][0], (12.0, 36.0), move) for name, move in ways}


@check("DDP-136", worlds=MANY, beyond=False)
def test_gradients_travel_in_the_dtype_of_the_rule_and_arrive_in_full(ranks):
    mean = (12.0 + (ranks.world - 1) * 36.0) / ranks.world
    for told in ranks(reduce_each, trace=True):
        for (name, move), (sent, arrived, value) in told.items():
            dtype = str(REDUCED[name][1]).removeprefix("torch.")
            assert sent & {"float32", "float16", "bfloat16"} == {dtype}, f"{name}, {move}: {sent}"
            assert (arrived, value) == (FULL, mean), f"{name}, {move}"


class Complex(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2, dtype=torch.complex64))

    def forward(self, x):
        return (self.weight * torch.complex(x, -x)).sum().abs()


def reduce_complex(ctx, config):
    def run():
        model = mixed(ctx, Complex(), config)
        model(torch.full((2,), 1.0 + ctx.rank, device=ctx.device)).backward()
        return torch.view_as_real(model.module.weight.grad).flatten().tolist()

    return or_lacks_accelerator(ctx, run)


@check("DDP-136", "DDP-137", worlds=MANY, beyond=False)
def test_complex_gradients_are_averaged_as_they_are_where_floats_travel_low(ranks):
    module = Complex()
    oracle_sum = sum(module(torch.full((2,), 1.0 + rank)) for rank in range(ranks.world))
    (oracle_sum / ranks.world).backward()
    right = torch.view_as_real(module.weight.grad).flatten().tolist()
    for found in ranks(reduce_complex, {"reduce_dtype": LOW}):
        assert found == pytest.approx(right, rel=1e-6)


@check("DDP-136", worlds=(2, 4))
def test_a_full_reduction_keeps_what_low_numbers_cannot_hold(ranks):
    mean = (2048.0 + (ranks.world - 1)) / ranks.world  # one half or three quarters more than a float16 knows there
    for _, _, value in ranks(reduce_low, {"param_dtype": HALF, "reduce_dtype": FULL}, (2048.0, 1.0)):
        assert value == mean
    huge = 60000.0  # a float16, but two of it are more than one can hold
    for _, _, value in ranks(reduce_low, {"param_dtype": HALF, "reduce_dtype": FULL}, (huge, huge)):
        assert value == huge


TINY = 3 * 2.0**-24  # three times the least float16: its half is none, nor its third


def reduce_tiny(ctx, width):
    def run():
        model = mixed(ctx, nn.Linear(width, width, bias=False).half(), {"reduce_dtype": FULL})
        model(torch.full((1, width), TINY, dtype=HALF, device=ctx.device)).sum().backward()
        return model.module.weight.grad.dtype, whole(model.module.weight.grad).unique().tolist()

    return or_lacks_accelerator(ctx, run)


@check("DDP-136", worlds=MANY, beyond=False)
def test_what_low_numbers_cannot_hold_is_kept_in_a_full_reduction_of_any_size(ranks):
    for width, told in ranks.each(reduce_tiny, (8, 128)):
        assert told == [(HALF, [TINY])] * ranks.world, f"{width=}"


def train_half(ctx, configs):
    def train(config, options):
        model = mixed(ctx, models.Sum(), config, bucket_cap_mb=TINY_MIB, **options)
        return [trained(model, models.divisible(ctx.rank, iteration).to(ctx.device)) for iteration in range(3)]

    return or_lacks_accelerator(ctx, lambda: [train(*each) for each in configs])


@check("DDP-135", "DDP-136", worlds=WORLDS, beyond=False)
def test_over_several_buckets_gradients_are_those_of_one_process(ranks):
    expected = []
    for iteration in range(3):
        batches = [models.divisible(rank, iteration) for rank in range(ranks.world)]
        expected.append(numbers(oracle.averaged_gradients(models.Sum(), batches, ranks.world).items()))
    configs = [({"param_dtype": HALF, "reduce_dtype": FULL}, {}),
               ({"reduce_dtype": HALF}, {"gradient_as_bucket_view": True})]  # fmt: skip
    assert ranks(train_half, configs) == [[expected] * len(configs)] * ranks.world


# -- DDP-140: accumulation


def accumulate_low(ctx):
    def run():
        model = mixed(ctx, models.scalar(), {"param_dtype": LOW, "reduce_dtype": FULL})
        values = [256.0 * (1 + ctx.rank % 2), 1.0, 1.0, 1.0, 1.0]
        with model.no_sync():
            for value in values[:-1]:
                model(torch.full((1, 1), value, device=ctx.device)).sum().backward()
        model(torch.full((1, 1), values[-1], device=ctx.device)).sum().backward()
        return gradients(model)["weight"][0]

    return or_lacks_accelerator(ctx, run)


@check("DDP-140", worlds=(1, 2, 4))
def test_what_accumulates_keeps_its_precision_or_that_of_the_low_dtype(ranks):
    firsts = [256.0 * (1 + rank % 2) for rank in range(ranks.world)]
    full = sum(first + 4 for first in firsts) / ranks.world
    low = sum(firsts) / ranks.world  # 256 + 1 is 256 in bfloat16
    for seen in ranks(accumulate_low):
        assert seen == full or low <= seen < full
        if seen != full:
            ranks.at_limit("accumulated gradients are rounded to the low dtype")


# -- DDP-141: without an accelerator, beside a hook, and the word of warning


def run_without_accelerator(ctx):
    if ctx.device.type != "cpu":
        raise NotRun("this is about mixed precision without an accelerator, and there is one")
    config = lowered(ctx, {"param_dtype": LOW})
    told = []

    def run():
        told.append(trained(wrapped(ctx, models.scalar(), mixed_precision=config), mine(ctx)))

    return caught(run), told


@check("DDP-141", worlds=(1, 2, 3))
def test_mixed_precision_works_on_the_cpu_or_is_refused(ranks):
    for error, told in ranks(run_without_accelerator):
        if error is None:
            assert told == [{"weight": [mean_of_all(ranks.world)]}]
        else:
            assert_refused([error], RuntimeError)
            assert "cpu" in error.text.lower() or asks_for_accelerator(error), error
            ranks.at_limit("mixed precision needs an accelerator")


def negated(_state, bucket):
    return done(-bucket.buffer())


def hook_mixed(ctx):
    models_built = []

    def build():
        models_built.append(mixed(ctx, models.scalar(), {"param_dtype": LOW}))

    heard = said(lambda: or_lacks_accelerator(ctx, build))
    error = caught(models_built[0].register_comm_hook, None, negated)
    found = None if error else or_lacks_accelerator(ctx, lambda: trained(models_built[0], mine(ctx)))
    return heard, error, found


@check("DDP-141", worlds=(1, 2))
def test_mixed_precision_is_announced_and_a_hook_beside_it_is_used_or_refused(ranks):
    for rank, (heard, error, found) in enumerate(ranks(hook_mixed)):
        assert "mixed precision" in heard, heard
        assert "bfloat16" in heard, heard
        if error is None:
            assert found == {"weight": [-12.0 * (rank + 1)]}, f"rank {rank}: the hook was not used"
        else:
            assert_refused([error], RuntimeError, "hook")
            ranks.at_limit("mixed precision takes the only slot for a communication hook")


def leave_out_in_low_precision(ctx):
    """The gradient of a part that is used once, and then twice left out; nothing is zeroed."""

    def run():
        model = mixed(ctx, models.Branches(), {"param_dtype": LOW}, find_unused_parameters=True)
        told = []
        for with_b in (True, False, False):
            model(mine(ctx), with_b=with_b).sum().backward()
            told.append((gradients(model)["b.weight"], str(model.module.b.weight.dtype)))
        return told

    return or_lacks_accelerator(ctx, run)


@check("DDP-140", worlds=MANY)
def test_what_had_accumulated_stays_where_a_low_iteration_leaves_a_parameter_out(ranks):
    assert ranks(leave_out_in_low_precision) == [[([mean_of_all(ranks.world)], "torch.float32")] * 3] * ranks.world
