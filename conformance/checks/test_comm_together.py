"""Hooks of the library where many choices meet: any two of them in some program, each iteration as in one process.

Low-rank compression has as many columns here as a matrix has room for, so that nothing is lost.
"""

import itertools
import pickle

import torch
import torch.distributed as dist
from torch import nn

from conformance.api import oracle
from conformance.api.checking import NotRun, check
from conformance.explore.listed import through_torch
from conformance.fixtures import choices, models
from conformance.fixtures.choices import (
    AFTER,
    BEFORE,
    BEHIND,
    WITHIN,
    Columns,
    Turns,
    happen,
    in_cases,
    turn,
    worlds_of,
)
from conformance.fixtures.comm_hooks import Stepping
from conformance.fixtures.pairwise import covering
from conformance.fixtures.training import ddp, numbers, private

DEADLINE_S = 12.0
BATCH = 10  # programs of one case
LOCAL_FROM = 2
COLUMNS = 16

FACTORS = {
    "world": (2, 3),
    "hook": (
        "all-reduce", "in half precision", "in half precision around", "low rank", "low rank by bucket",
        "low rank, in half precision", "eight bits", "eight bits by channel", "local", "local without averages",
        "with a step",
    ),
    "state": ("none", "the model's group", "another group"),
    "model": ("forwards", "backwards", "complex", "by columns", "doubles", "wider gradients", "some unused", "a table"),
    "graph": ("dynamic", "searched", "static"),
    "gradients": ("copies", "views"),
    "cleared": ("to None", "to zeros"),
    "buckets": (25, 1e-4, 1e-6),
    "between": (
        "nothing", "accumulation", "evaluation", "a forward alone", "other storage", "another group", "a cast",
        "a saved state",
    ),
    "context": ("none", "by all", "by the active"),
}  # fmt: skip
FORBIDDEN = (
    {"model": ("some unused",), "graph": ("dynamic", "static")},  # they are used by turns
    {"model": ("a table",), "gradients": ("views",)},  # a sparse gradient is none
    {"model": ("a table",), "cleared": ("to zeros",)},  # in a sparse gradient rows of zeros stay
    {"model": ("doubles", "complex", "wider gradients"), "between": ("a cast",)},  # nothing to be cast, or lost by it
    {"model": ("wider gradients",), "hook": ("in half precision", "in half precision around")},  # which they do not fit
    # who is in no group of the state: it has none
    {"between": ("a saved state",), "hook": (
        "all-reduce", "in half precision", "in half precision around", "eight bits", "eight bits by channel",
        "local", "local without averages", "with a step",
    )},
    {"hook": ("local", "local without averages"), "model": ("some unused",)},
)  # fmt: skip
#: how far off a hook may be, relative to the largest number; 0 where it is not named
ERRORS = {
    "low rank": 1e-4, "low rank by bucket": 1e-4, "low rank, in half precision": 2e-2, "eight bits": 2e-2,
    "eight bits by channel": 2e-2,
}  # fmt: skip


#: choices of which torch is known to break something in some program: its listed deviations and their checks say what
KNOWN = {
    "hook": (
        "low rank", "low rank by bucket", "low rank, in half precision", "eight bits", "eight bits by channel",
        "with a step",
    ),
    "model": ("complex", "wider gradients", "some unused", "a table"), "context": ("by all", "by the active"),
    "between": ("a cast",),
}  # fmt: skip


class Looking(nn.Module):
    """A sparse table beside two dense layers; rows are looked up by the numbers that are fed."""

    def __init__(self):
        super().__init__()
        self.table, self.layers = nn.Embedding(6, 4, sparse=True), models.Sum(2)
        nn.init.ones_(self.table.weight)

    def forward(self, x):
        return self.layers(x) + 12 * self.table(x.abs().long().flatten() % 6).sum()


def wider():
    """Parameters of bfloat16, whose gradients are of single precision."""
    model = models.Sum().bfloat16()
    for parameter in model.parameters():
        parameter.grad_dtype = torch.float32
    return model


MODELS = {
    "forwards": models.Sum, "backwards": models.SumBackwards, "complex": models.Complex, "by columns": Columns,
    "doubles": lambda: models.Sum().double(), "wider gradients": wider,
    "some unused": Turns, "a table": Looking,
}  # fmt: skip


class Program(choices.Program):
    """With the ranks that average together."""

    def peers(self, rank, made):
        """Over whom this rank averages in its iteration of this number, the first being 0."""
        world = len(self.schedule)
        if made < LOCAL_FROM or not self["hook"].startswith("local"):
            return range(world)
        if self["hook"] == "local without averages":
            return [rank]
        return [each for each in range(world) if (each == world - 1) == (rank == world - 1)]


def programs():
    """The programs of each case, by its name."""
    return in_cases(covering(FACTORS, FORBIDDEN), Program, BATCH)


# -- on the ranks


def registered(ctx, program, model, groups):
    """Register the hook; the state of one that has a state of its own."""
    library, name = ctx.subject, program["hook"]
    group = {"none": None, "the model's group": groups["model"], "another group": groups["other"]}[program["state"]]
    state = group
    if name.startswith("low rank"):
        options = {"start_powerSGD_iter": 2, "min_compression_rate": 0.01}
        state = library.powerSGD_hook.PowerSGDState(group, COLUMNS, **options)
    if name.startswith("local"):
        state = library.post_localSGD_hook.PostLocalSGDState(
            group, groups["local"], LOCAL_FROM, post_local_gradient_allreduce=name == "local"
        )
    model.register_comm_hook(state, hook_of(ctx, name))
    return state


def hook_of(ctx, name):
    library = ctx.subject
    default, low_rank = library.default_hooks, library.powerSGD_hook
    if name == "with a step":
        stepping = private(library.optimizer_overlap_hooks, "_OptimizerHookState")(Stepping())
        return private(library.optimizer_overlap_hooks, "_hook_then_optimizer")(default.allreduce_hook, stepping)
    return {
        "all-reduce": default.allreduce_hook,
        "in half precision": default.fp16_compress_hook,
        "in half precision around": default.fp16_compress_wrapper(default.allreduce_hook),
        "low rank": low_rank.powerSGD_hook,
        "low rank by bucket": low_rank.batched_powerSGD_hook,
        "low rank, in half precision": default.fp16_compress_wrapper(low_rank.powerSGD_hook),
        "eight bits": library.quantization_hooks.quantization_pertensor_hook,
        "eight bits by channel": library.quantization_hooks.quantization_perchannel_hook,
        "local": library.post_localSGD_hook.post_localSGD_hook,
        "local without averages": library.post_localSGD_hook.post_localSGD_hook,
    }[name]


def batch(model, rank, number):
    """Two rows; in bfloat16 such that its digits do not hold a mean of several ranks' gradients."""
    first = next(model.parameters())
    real = first.dtype.to_real() if first.is_complex() else first.dtype
    far_apart = 64 ** (rank % 2) if real is torch.bfloat16 else 1
    return far_apart * models.integers(2, 4, seed=1000 * rank + number).to(first.device, real)


def loss(output):
    return 12 * output.sum()


def train(ctx, program, groups):
    """What each of this rank's iterations leaves in gradients and parameters, in the context and outside."""
    module, seen = MODELS[program["model"]]().to(ctx.device), []
    model = ddp(ctx, module, process_group=groups["model"], **program.options)
    state = registered(ctx, program, model, groups)

    def forward(number):
        turn(model.module, ctx.rank, number)
        return model(batch(model.module, ctx.rank, number))

    def step(number, *micro):
        model.zero_grad(set_to_none=program["cleared"] == "to None")
        for part in micro:
            with model.no_sync():
                loss(forward(part)).backward()
        loss(forward(number)).backward()
        seen.append(held(model.module))

    for number in range(BEFORE):
        step(number)
    what = program["between"]
    happen(what, model, lambda: forward(BEFORE), lambda: groups["other"])
    if what == "a cast":
        model.double()
    elif what == "a saved state":  # goes on with another model
        state = pickle.loads(pickle.dumps(state))
        model = ddp(ctx, model.module, process_group=groups["other"], **program.options)
        model.register_comm_hook(state, hook_of(ctx, program["hook"]))
    step(BEFORE, *program.micro)
    if program["context"] != "none":
        with ctx.subject.Join([model], divide_by_initial_world_size=program.divides_by_all):
            for number in range(program.schedule[ctx.rank]):
                step(WITHIN + number)
    for number in range(AFTER):
        step(BEHIND + number)
    return seen


def held(model):
    return (
        numbers((name, None if p.grad is None else p.grad.to_dense()) for name, p in model.named_parameters()),
        numbers(model.named_parameters()),
    )


def train_each(ctx, chosen):
    everyone = list(range(ctx.world))
    groups = {"model": dist.new_group(everyone), "other": dist.new_group(everyone)}
    parts = [dist.new_group(part) for part in (everyone[:-1], everyone[-1:])]
    groups["local"] = parts[ctx.rank == ctx.world - 1]
    return [train(ctx, program, groups) for program in chosen]


# -- in one process


def alone(program, rank):
    """One process's gradients and parameters in the iterations that this rank makes; the others contribute what they
    would, whatever their own parameters are: no gradient depends on any."""
    world, model, seen, made = len(program.schedule), MODELS[program["model"]](), [], 0

    def step(active, *numbers_):
        nonlocal made
        model.zero_grad(set_to_none=program["cleared"] == "to None")
        together = program.peers(rank, made)
        made += 1
        there = [each for each in together if each in active]
        divisor = len(together) if program.divides_by_all else len(there)
        total = {}
        for one, number in itertools.product(there, numbers_):
            turn(model, one, number)
            output = loss(model(batch(model, one, number)))
            found = torch.autograd.grad(output, list(model.parameters()), allow_unused=True)
            for parameter, each in zip(model.parameters(), found, strict=True):
                if each is not None:
                    wide = each.to_dense().to(parameter.grad_dtype or parameter.dtype)
                    total[parameter] = total.get(parameter, 0) + wide / divisor
        for parameter, average in total.items():
            parameter.grad = average
            if program["hook"] == "with a step":
                Stepping().step_param(parameter, average)
        if rank in active:
            seen.append(held(model))

    for number in range(BEFORE):
        step(range(world), number)
    if program["between"] == "a cast":
        model.double()
    step(range(world), *program.micro, BEFORE)
    for number in range(max(program.schedule) if program["context"] != "none" else 0):
        step(oracle.active_ranks(program.schedule, number), WITHIN + number)
    for number in range(AFTER):
        step(range(world), BEHIND + number)
    return seen


def left_of(chosen, subject):
    """Without what listed deviations explain."""
    if not through_torch(subject):
        return chosen
    left = [each for each in chosen if not any(each[factor] in values for factor, values in KNOWN.items())]
    if not left:
        raise NotRun("each of these programs chooses what is listed as broken")
    return left


def close(found, wanted, error):
    """Whether numbers by name are equal, or off by no more than so much of the largest one."""
    if found == wanted:
        return True
    flat = [[value for values in each.values() for value in values or ()] for each in (found, wanted)]
    alike = [{name: values is None for name, values in each.items()} for each in (found, wanted)]
    one, other = (torch.tensor(each, dtype=torch.complex128) for each in flat)
    return alike[0] == alike[1] and bool((one - other).abs().max() <= error * other.abs().max())


@check("COMM-019", worlds=(2, 3), at=worlds_of, scenarios=programs(), deadline_s=DEADLINE_S, beyond=False)
def test_any_two_choices_around_a_hook_of_the_library_average_as_one_process(ranks, scenario):
    chosen = left_of(scenario, ranks.subject_spec)
    for rank, runs in enumerate(ranks(train_each, chosen)):
        for program, seen in zip(chosen, runs, strict=True):
            expected = alone(program, rank)
            assert len(seen) == len(expected)
            for number, (mine, due) in enumerate(zip(seen, expected, strict=True)):
                for what, found, wanted in zip(("gradients", "parameters"), mine, due, strict=True):
                    right = close(found, wanted, ERRORS.get(program["hook"], 0.0))
                    assert right, f"{what} of rank {rank}, its iteration {number}, {program}: {found} against {wanted}"
