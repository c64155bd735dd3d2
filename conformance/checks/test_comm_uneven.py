"""Hooks of the library on uneven inputs: each divides by what the context asks for."""

import functools

from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

from conformance.api import oracle
from conformance.api.checking import check
from conformance.fixtures import models
from conformance.fixtures.comm_hooks import gap, hooked
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
