"""Native mixed precision in programs of many kinds: gradients are those of one process in full precision."""

import itertools
from contextlib import nullcontext

import torch
from torch import nn

from conformance.api import oracle
from conformance.api.checking import check
from conformance.fixtures import models
from conformance.fixtures.observing import TINY_MIB, mine, mixed, or_lacks_accelerator
from conformance.fixtures.training import gradients, parameters, whole

LOW, HALF, FULL = torch.bfloat16, torch.float16, torch.float32


class OneOrTwo(nn.Module):
    """Two weights of which autograd itself keeps hold; a forward may leave out the second."""

    def __init__(self):
        super().__init__()
        self.a, self.b = models.scalar(), models.scalar()

    def forward(self, x, everything):
        product = x @ self.a.weight
        return product @ self.b.weight if everything else product


# -- the programs: ``x`` is the rank's input, ``last`` says whether it is the last rank


def go_through(model, x, everything=True):
    model(x, everything).sum().backward()


def zeroes_between_forward_and_backward(model, x, last):
    for set_to_none in (True, False):
        output = model(x, True)
        model.zero_grad(set_to_none=set_to_none)
        output.sum().backward()


def adds_two_forwards(model, x, last):
    (model(x, True) + model(x, True)).sum().backward()


def goes_backward_twice_after_two_forwards(model, x, last):
    losses = [model(x, True).sum() for _ in range(2)]
    for loss in losses:
        loss.backward()


def evaluates_between_forward_and_backward(model, x, last):
    output = model(x, True)
    with torch.no_grad():
        model(x, True)
    output.sum().backward()


def evaluates_between_two_forwards(model, x, last):
    first = model(x, True)
    with torch.no_grad():
        model(x, True)
    (first + model(x, True)).sum().backward()


def uses_all_on_the_last_rank_only(model, x, last):
    go_through(model, x, last)


def accumulates_what_others_leave_out(model, x, last):
    go_through(model, x)
    go_through(model, x, last)


def accumulates_what_is_left_out(model, x, last):
    with getattr(model, "no_sync", nullcontext)():
        go_through(model, x)
    go_through(model, x, False)


def accumulates_two_forwards(model, x, last):
    with getattr(model, "no_sync", nullcontext)():
        losses = [model(x, True).sum() for _ in range(2)]
        for loss in losses:
            loss.backward()
    go_through(model, x)


def accumulates_one_forward_twice(model, x, last):
    with getattr(model, "no_sync", nullcontext)():
        loss = model(x, True).sum()
        loss.backward(retain_graph=True)
        loss.backward()
    go_through(model, x)


def double_the_gradient(parameter):
    parameter.grad.mul_(2)


def doubles_gradients_in_hooks(model, x, last):
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(double_the_gradient)
    go_through(model, x)


PROGRAMS = (
    zeroes_between_forward_and_backward,
    adds_two_forwards,
    goes_backward_twice_after_two_forwards,
    evaluates_between_forward_and_backward,
    evaluates_between_two_forwards,
    uses_all_on_the_last_rank_only,
    accumulates_what_others_leave_out,
    accumulates_what_is_left_out,
    accumulates_two_forwards,
    accumulates_one_forward_twice,
    doubles_gradients_in_hooks,
)
USING_ALL = (accumulates_two_forwards, accumulates_one_forward_twice)  # nothing need be searched for
CONFIGS = {
    "parameters": {"param_dtype": LOW},
    "parameters only": {"param_dtype": LOW, "reduce_dtype": FULL},
    "reduction only": {"reduce_dtype": LOW},
}


def left_behind(model):
    """By parameter: its gradient, zeros for none; all in full precision."""
    found = {}
    for name, parameter in model.named_parameters():
        gradient = torch.zeros_like(parameter) if parameter.grad is None else whole(parameter.grad)
        assert (parameter.dtype, gradient.dtype) == (FULL, FULL), f"{name}: {parameter.dtype}, {gradient.dtype}"
        found[name.removeprefix("module.")] = gradient.flatten().cpu()
    return found


def run_all(ctx, config):
    def run():
        found = {}
        for program in PROGRAMS:
            model = mixed(ctx, OneOrTwo(), config, find_unused_parameters=program not in USING_ALL)
            program(model, mine(ctx), ctx.rank == ctx.world - 1)
            found[program.__name__] = left_behind(model)
        return found

    return or_lacks_accelerator(ctx, run)


def in_one_process(program, world):
    """The mean of what the ranks' programs leave behind, each alone with a plain model."""
    found = []
    for rank in range(world):
        model = OneOrTwo()
        program(model, torch.full((1, 1), 12.0 * (rank + 1)), rank == world - 1)
        found.append(left_behind(model))
    return {name: torch.stack([each[name] for each in found]).mean(0) for name in found[0]}


@check("DDP-135", worlds=(2, 3), scenarios=CONFIGS)
def test_programs_of_many_kinds_get_the_gradients_of_full_precision(ranks, scenario):
    expected = {program.__name__: in_one_process(program, ranks.world) for program in PROGRAMS}
    for rank, found in enumerate(ranks(run_all, scenario)):
        for program, means in expected.items():
            for name, gradient in means.items():
                held = found[program][name]
                assert torch.equal(held, gradient), f"{program}, {name}, rank {rank}: {held}, not {gradient}"


# -- on uneven inputs: gradients, weights and buffers after each iteration

FINE = 2.0**-12  # 1 + FINE is a float32 and no bfloat16
RATE = 2.0**-6
LOWERED = (
    {"param_dtype": LOW, "buffer_dtype": LOW},
    {"param_dtype": HALF, "reduce_dtype": FULL},
    {"reduce_dtype": LOW},
)
WAYS = (
    {"bucket_cap_mb": TINY_MIB, "gradient_as_bucket_view": True},
    {"find_unused_parameters": True},
    {"static_graph": True},
)


class Beside(nn.Module):
    """Two layers beside each other, whose gradients are the input whatever they weigh, and a buffer that counts."""

    def __init__(self, step):
        super().__init__()
        self.a, self.b = models.scalar(1.0 + FINE), models.scalar(1.0 + FINE)
        self.register_buffer("count", torch.zeros(1))
        self.step, self.seen = step, []

    def forward(self, x, everything):
        self.seen.append(self.count.item())
        self.count += self.step
        return self.a(x) + self.b(x) if everything else self.a(x)


def small(rank, iteration):
    return 12.0 * (1 + (rank + 2 * iteration) % 5)


def uses_all(rank, iteration, options):
    return "find_unused_parameters" not in options or (rank + iteration) % 2 == 0


def train_unevenly(ctx, jobs):
    """By job: this rank's gradients and weights after each iteration, what its forwards found, and all in the end."""

    def train(schedule, config, options, by_all):
        model = mixed(ctx, Beside(1.0 + 10 * ctx.rank), config, **options)
        optimizer, seen = torch.optim.SGD(model.parameters(), lr=RATE), []
        with model.join(divide_by_initial_world_size=by_all):
            for iteration in range(schedule[ctx.rank]):
                optimizer.zero_grad()
                model.to(ctx.device)  # where it is
                x = torch.full((1, 1), small(ctx.rank, iteration), device=ctx.device)
                output = model(x, uses_all(ctx.rank, iteration, options))
                model.eval()
                with torch.no_grad():
                    model(x, True)
                model.train()
                del model.module.seen[-1]
                model.module.count -= model.module.step
                output.sum().backward()
                seen.append([gradients(model)])
                optimizer.step()
                seen[-1].append(parameters(model))
        return seen, parameters(model), model.module.seen

    return or_lacks_accelerator(ctx, lambda: [train(*job) for job in jobs])


def trained_alone(schedule, options, by_all):
    """One process's gradients and weights, iteration by iteration."""
    held, told = {"a.weight": 1.0 + FINE, "b.weight": 1.0 + FINE}, []
    for iteration in range(max(schedule)):
        active = oracle.active_ranks(schedule, iteration)
        using = [rank for rank in active if uses_all(rank, iteration, options)]
        divisor = len(schedule) if by_all else len(active)
        found = {"a.weight": sum(small(rank, iteration) for rank in active) / divisor, "b.weight": None}
        if using:
            found["b.weight"] = sum(small(rank, iteration) for rank in using) / divisor
        held = {name: value - RATE * (found[name] or 0.0) for name, value in held.items()}
        both = [{name: None if value is None else [value] for name, value in each.items()} for each in (found, held)]
        told.append(both)
    return told


@check("DDP-135", "DDP-136", "DDPJ-009", worlds=(2, 4), beyond=False)
def test_on_uneven_inputs_too_models_of_mixed_precision_train_as_one_process_does(ranks):
    rest = ranks.world - 1
    schedules = ((1, *[4] * rest), (*[3] * rest, 0), (4, *[2] * rest))
    jobs = [
        (schedules[(place + place // 3) % 3], *each, place % 2 == 0)
        for place, each in enumerate(itertools.product(LOWERED, WAYS))
    ]
    for rank, told in enumerate(ranks(train_unevenly, jobs)):
        for (schedule, config, options, by_all), (seen, last, counted) in zip(jobs, told, strict=True):
            expected = trained_alone(schedule, options, by_all)
            where = f"rank {rank}, {schedule}, {config}, {options}, {by_all=}"
            assert seen == expected[: schedule[rank]], where
            assert last == expected[-1][1], f"after the block, {where}"
            own, _ = oracle.buffers_seen(schedule, [1.0 + 10 * each for each in range(ranks.world)])
            assert counted == own[rank], f"buffer, {where}"


# -- a sparse table, whose ranks leave a forward without its backward


def look_up_unevenly(ctx, reduced, schedule):
    """Each rank looks up a row of its own and the first one; of the second forward nobody calls the backward."""

    def run():
        mixed(ctx, models.scalar(), {"param_dtype": LOW})(mine(ctx))  # whoever lacks an accelerator says so here
        config = {"param_dtype": LOW, "reduce_dtype": reduced}
        model, seen = mixed(ctx, nn.Embedding(4, 16, sparse=True), config), []
        with model.join():
            for iteration in range(schedule[ctx.rank]):
                model.zero_grad()
                output = model(torch.tensor([0, 1 + ctx.rank % 3], device=ctx.device))
                if iteration != 1:
                    (12 * output).sum().backward()
                    seen.append(whole(model.module.weight.grad).to_dense()[:, 3].tolist())
        return seen

    return or_lacks_accelerator(ctx, run)


@check("DDPJ-009", "JOIN-054", worlds=(2, 3), beyond=False)
def test_a_rank_that_leaves_a_forward_open_has_nothing_to_add_to_a_table(ranks):
    schedule = (2, *[4] * (ranks.world - 1))
    means = []
    for active in (range(ranks.world), range(1, ranks.world), range(1, ranks.world)):
        row = [12.0 * sum(1 + rank % 3 == place for rank in active) / ranks.world for place in range(4)]
        means.append([12.0 * len(active) / ranks.world, *row[1:]])
    for reduced, told in ranks.each(look_up_unevenly, (LOW, FULL), schedule):
        assert told == [means[:1], *[means] * (ranks.world - 1)], reduced
