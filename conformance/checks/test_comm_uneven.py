"""Hooks of the library on uneven inputs: each divides by what the context asks for."""

import functools

import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import (
    debugging_hooks,
    default_hooks,
    post_localSGD_hook,
    powerSGD_hook,
)
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

from conformance.api import oracle
from conformance.api.checking import check
from conformance.fixtures import models
from conformance.fixtures.comm_hooks import gap, hooked, steps
from conformance.fixtures.training import gradients, numbers
from conformance.ranks import caught

BY_ACTIVE = {"divide_by_initial_world_size": False}
NEAR = 0.02  # of the largest number: an eighth of a bit or a rank of 1 lose less, another divisor at least a quarter


def one_layer():
    """Its weight's gradient has rank 1: low-rank factors say all of it."""
    return models.Sum(1)


class Table(nn.Module):
    """A sparse table; the gradient of a row is twelve for each time that it is looked up."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(6, 2, sparse=True)

    def forward(self, rows):
        return 12 * self.table(rows)


def register(ctx, name, model):
    library = ctx.subject
    if name == "low rank":
        state = library.powerSGD_hook.PowerSGDState(
            None, start_powerSGD_iter=0, warm_start=False, use_error_feedback=False, min_compression_rate=0.1
        )
        return hooked(ctx, state, library.powerSGD_hook.powerSGD_hook, model)
    hook = {
        "half precision": library.default_hooks.fp16_compress_hook,
        "half precision around": library.default_hooks.fp16_compress_wrapper(library.default_hooks.allreduce_hook),
        "eight bits": library.quantization_hooks.quantization_pertensor_hook,
        "eight bits by channel": library.quantization_hooks.quantization_perchannel_hook,
        "a sparse table": library.default_hooks.allreduce_hook,
    }[name]
    return hooked(ctx, None, hook, model)


def train(ctx, schedule, name):
    model, batch = (Table(), models.rows) if name == "a sparse table" else (one_layer(), models.divisible)
    seen = []
    wrapped = register(ctx, name, model.to(ctx.device))
    with wrapped.join(**BY_ACTIVE):
        for iteration in range(schedule[ctx.rank]):
            wrapped.zero_grad(set_to_none=True)
            wrapped(batch(ctx.rank, iteration).to(ctx.device)).sum().backward()
            seen.append(numbers((key, p.grad.to_dense()) for key, p in wrapped.module.named_parameters()))
    return seen


def averages(schedule, name):
    model, batch = (Table(), models.rows) if name == "a sparse table" else (one_layer(), models.divisible)
    found = []
    for iteration in range(max(schedule)):
        active = oracle.active_ranks(schedule, iteration)
        several = [oracle.local_gradients(model, batch(rank, iteration)) for rank in active]
        found.append(numbers((key, sum(each[key].to_dense() for each in several) / len(active)) for key in several[0]))
    return found


NAMES = ("low rank", "a sparse table", "half precision", "half precision around", "eight bits", "eight bits by channel")


@check("DDPJ-014", worlds=(2, 4), beyond=False, scenarios={name: name for name in NAMES})
def test_every_hook_of_the_library_divides_by_the_active_ranks_when_asked(ranks, scenario):
    schedule = tuple(2 + rank for rank in range(ranks.world))  # who joins has had gradients in its final buckets
    right = averages(schedule, scenario)
    for rank, seen in enumerate(ranks(train, schedule, scenario)):
        for iteration, found in enumerate(seen):
            far = gap([found], [right[iteration]])
            assert far < NEAR, f"rank {rank}, iteration {iteration}: {far:.3f} apart"


def train_with_torchs_own(ctx, schedule):
    """The same with torch's hook, which knows nothing of who is active; None where its form is refused."""
    wrapped = ctx.subject.DistributedDataParallel(one_layer().to(ctx.device))
    error = caught(wrapped.register_comm_hook, None, functools.partial(allreduce_hook))
    if error is not None and error.is_a(AttributeError):
        return None
    assert error is None, str(error)
    seen = []
    with wrapped.join(**BY_ACTIVE):
        for iteration in range(schedule[ctx.rank]):
            wrapped.zero_grad(set_to_none=True)
            wrapped(models.divisible(ctx.rank, iteration).to(ctx.device)).sum().backward()
            seen.append(gradients(wrapped))
    return seen


@check("DDPJ-014", "COMM-010", worlds=(2, 4), beyond=False)
def test_a_partial_of_torchs_own_hook_divides_by_the_active_ranks_when_asked(ranks):
    schedule = tuple(2 + rank for rank in range(ranks.world))
    right = averages(schedule, "torch's own")
    for rank, seen in enumerate(ranks(train_with_torchs_own, schedule)):
        if seen is None:
            ranks.at_limit("partials are refused with AttributeError")
            continue
        for iteration, found in enumerate(seen):
            far = gap([found], [right[iteration]])
            assert far < NEAR, f"rank {rank}, iteration {iteration}: {far:.3f} apart"


def train_in_each_mixture(ctx, schedule):
    return {name: train_in_a_mixture(ctx, schedule, name) for name in MIXTURES}


def train_in_a_mixture(ctx, schedule, name):
    ours, state, group = ctx.subject.default_hooks, None, ctx.group
    if "in a group" in name:
        state = group = dist.new_group(list(range(ctx.world)))
    if name == "post-local":
        # the longest rank's last iteration is the last one that is averaged; from then on gradients would stay local
        state = post_localSGD_hook.PostLocalSGDState(ctx.group, ctx.group, max(schedule), False)
    if "low rank" in name:
        state = powerSGD_hook.PowerSGDState(
            group, start_powerSGD_iter=0, min_compression_rate=0.1, use_error_feedback=False, warm_start=False
        )
    hook = {
        "torch's around torch's": default_hooks.fp16_compress_wrapper(allreduce_hook),
        "torch's around the library's": default_hooks.fp16_compress_wrapper(ours.allreduce_hook),
        "the library's around torch's": ours.fp16_compress_wrapper(allreduce_hook),
        "post-local": post_localSGD_hook.post_localSGD_hook,
        "torch's, in a group": allreduce_hook,
        "low rank": powerSGD_hook.powerSGD_hook,
        "low rank, in a group": powerSGD_hook.powerSGD_hook,
    }[name]
    return train_hooked(ctx, schedule, state, hook, group=group)


def train_hooked(ctx, schedule, state, hook, **options):
    wrapped = hooked(ctx, state, hook, one_layer().to(ctx.device), **options)
    with wrapped.join(**BY_ACTIVE):
        return steps(ctx, wrapped, count=schedule[ctx.rank])


def assert_near(found, right):
    """By rank, name and iteration: gradients are ``right(rank, iteration, name)``."""
    for rank, told in enumerate(found):
        for name, seen in told.items():
            for iteration, each in enumerate(seen):
                far = gap([each], [right(rank, iteration, name)])
                assert far < NEAR, f"rank {rank}, iteration {iteration}: {far:.3f} apart, {name}"


def libraries(ctx):
    """Whose hooks there are: the name, the module of the default ones, and that of post-local SGD."""
    return (
        ("the library's", ctx.subject.default_hooks, ctx.subject.post_localSGD_hook),
        ("torch's", default_hooks, post_localSGD_hook),
    )


MIXTURES = (
    "torch's around torch's", "torch's around the library's", "the library's around torch's", "post-local", "low rank",
    "torch's, in a group", "low rank, in a group",
)  # fmt: skip


@check("DDPJ-014", worlds=(2, 4), beyond=False)
def test_hooks_and_wrappers_of_torch_and_of_the_library_divide_by_the_active_ranks_in_any_mixture(ranks):
    schedule = tuple(2 + rank for rank in range(ranks.world))
    right = averages(schedule, "torch's own")
    assert_near(ranks(train_in_each_mixture, schedule), lambda _rank, iteration, _name: right[iteration])


_LOCAL_FROM = 3  # one rank has run out by then


def train_in_other_groups(ctx, schedule):
    """Averages over a group of the same ranks that is another object, and over pairs of ranks."""
    everyone = dist.new_group(list(range(ctx.world)))
    pairs = [dist.new_group([first, first + 1]) for first in range(0, ctx.world, 2)]
    pair, told = pairs[ctx.rank // 2], {}
    for whose, hooks, local in libraries(ctx):
        told[f"{whose}, all"] = train_hooked(ctx, schedule, everyone, hooks.allreduce_hook)
        told[f"{whose}, pairs of one model each"] = train_hooked(ctx, schedule, pair, hooks.allreduce_hook, group=pair)
        for name, group in (("all", everyone), ("pairs", pair)):
            state = local.PostLocalSGDState(ctx.group, group, _LOCAL_FROM)
            told[f"{whose}, post-local, {name}"] = train_hooked(ctx, schedule, state, local.post_localSGD_hook)
    return told


def average_of(rank, iteration, schedule, name):
    """Of the active ranks; where pairs are named, of those in this rank's pair, post-local from the start on."""
    in_pairs = "pairs" in name and ("post-local" not in name or iteration >= _LOCAL_FROM)
    together = {rank, rank ^ 1} if in_pairs else set(range(len(schedule)))
    active = [each for each in oracle.active_ranks(schedule, iteration) if each in together]
    several = [oracle.local_gradients(one_layer(), models.divisible(each, iteration)) for each in active]
    return numbers((key, sum(each[key] for each in several) / len(active)) for key in several[0])


@check("DDPJ-014", worlds=(4,), beyond=False)
def test_hooks_that_average_over_groups_of_their_own_count_the_active_ranks_of_these(ranks):
    schedule = (5, 3, 4, 6)  # where averages are local, fewer ranks of each pair are left than of all
    found = ranks(train_in_other_groups, schedule)
    assert_near(found, lambda rank, iteration, name: average_of(rank, iteration, schedule, name))


def train_in_a_part(ctx, schedule):
    """A model on all ranks but the first, with hooks that average over the same ranks in a group of their own."""
    own, others = (dist.new_group(list(range(1, ctx.world))) for _ in range(2))
    told = {}
    if ctx.rank == 0:
        return told
    for whose, hooks, local in libraries(ctx):
        told[whose] = train_hooked(ctx, schedule, others, hooks.allreduce_hook, group=own)
        state = local.PostLocalSGDState(own, others, _LOCAL_FROM)
        told[f"{whose}, post-local"] = train_hooked(ctx, schedule, state, local.post_localSGD_hook, group=own)
    return told


@check("DDPJ-014", worlds=(3, 4), beyond=False)
def test_hooks_of_a_model_on_some_ranks_count_the_active_ones_among_these(ranks):
    schedule = (0, *(2 + rank for rank in range(1, ranks.world)))
    right = averages(schedule, "a part of the world")
    assert_near(ranks(train_in_a_part, schedule), lambda _rank, iteration, _name: right[iteration])


# -- COMM-022, COMM-028: torch's own hooks that do not average


def train_without_averaging(ctx, schedule, name, start):
    if name == "no-op":
        return train_hooked(ctx, schedule, None, debugging_hooks.noop_hook)
    state = post_localSGD_hook.PostLocalSGDState(ctx.group, ctx.group, start, post_local_gradient_allreduce=False)
    return train_hooked(ctx, schedule, state, post_localSGD_hook.post_localSGD_hook)


@check("COMM-022", "COMM-028", worlds=(2, 3), scenarios={
    "no-op": ("no-op", 0), "post-local": ("post-local", 0), "post-local, later": ("post-local", 2),
})  # fmt: skip
def test_torchs_own_hooks_that_do_not_average_leave_gradients_alone_whoever_is_active(ranks, scenario):
    schedule, start = tuple(2 + rank for rank in range(ranks.world)), scenario[1]
    right = averages(schedule, "until it starts")
    for rank, seen in enumerate(ranks(train_without_averaging, schedule, *scenario)):
        expected = [oracle.local_gradients(one_layer(), models.divisible(rank, i)) for i in range(schedule[rank])]
        assert not start or gap(seen[:start], right[:start]) < NEAR, f"rank {rank}"
        assert seen[start:] == [numbers(each.items()) for each in expected[start:]], f"rank {rank}"
