"""Ranks that are killed one after the other in a context, while those that are left go on: one model and several."""

import os
import signal
from contextlib import nullcontext

import torch
import torch.distributed as dist

from conformance.api import oracle
from conformance.api.checking import check
from conformance.fixtures import models
from conformance.fixtures.training import ddp, numbers
from conformance.ranks import Finished, caught

STEPS = 7
MADE_BEFORE = 100  # steps that the program counts, too
LR, MOMENTUM = 0.125, 0.5
SGD = {"lr": LR, "momentum": MOMENTUM}


def data(rank, iteration, place):
    return models.divisible(rank, 10 * place + iteration)


def lose_one_between_contexts(ctx):
    """All ranks leave a context by an error, and rank 1 is killed: what the others are told in the next one."""
    model = ddp(ctx, models.scalar())

    def train():
        with model.join():
            model(models.divisible_scalar(ctx.rank, 0)).sum().backward()
            if ctx.rank == 1 or not left:
                raise KeyError("planted")

    left = caught(train)
    if ctx.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return caught(train)


@check("JOIN-057", worlds=(2, 3), backends=("gloo",), beyond=False, deadline_s=30)
def test_peers_of_a_rank_that_is_lost_after_a_context_failed_are_told_which_one_in_the_next(ranks):
    lost = ranks.subject.PeerFailed
    run = ranks.run(lose_one_between_contexts, stall_s=20)
    for rank, end in enumerate(run.outcomes):
        if rank == 1:
            continue
        assert isinstance(end, Finished), run.summary()
        assert end.value is not None, f"rank {rank}"
        assert end.value.is_a(lost), f"rank {rank}: {end.value}"
        assert "rank 1" in end.value.text, f"rank {rank}: {end.value}"


class Finer(torch.optim.SGD):
    """Adds up in each parameter's state, in double precision, what it has stepped with."""

    @torch.no_grad()
    def step(self, closure=None):
        super().step(closure)
        for parameter in self.param_groups[0]["params"]:
            state = self.state[parameter]
            zeros = torch.zeros_like(parameter, dtype=torch.float64)
            state["sum"] = state.get("sum", zeros) + 1 + parameter.grad / 2**40


def make(ctx, model, mirrored):
    if not mirrored:
        return Finer(model.parameters(), **SGD)
    made = ctx.subject.ZeroRedundancyOptimizer(model.parameters(), Finer, **SGD)
    made.keep_mirror(mirrored)
    return made


def go_on(ctx, deaths, several, mirrored, joined, behind=None):
    """By model: from which step on which ranks took part, its parameters, and the optimizer's sums.

    ``mirrored``: 0, or how far a shard's copies are from their owner. A death: rank, iteration, model;
    before its backward, or after it where another rank, ``behind``, stays behind: that
    one is told of the death by other means, and does not make the step.
    """
    regroup, group = ctx.subject.regroup, None
    wrapped = [ddp(ctx, models.Parts("ab")) for _ in range(several)]
    optimizers = [make(ctx, model, mirrored) for model in wrapped]
    steps, segments = [0] * several, [[(0, tuple(range(ctx.world)))] for _ in wrapped]

    def train():
        for iteration in range(STEPS):
            for place, (model, optimizer) in enumerate(zip(wrapped, optimizers, strict=True)):
                if steps[place] > iteration:
                    continue
                model.zero_grad()
                loss = model(data(ctx.rank, iteration, place)).sum()
                dies = (ctx.rank, iteration, place) in deaths
                if dies and behind is None:
                    os.kill(os.getpid(), signal.SIGKILL)
                loss.backward()
                if dies:
                    ctx.store.set(f"{ctx.rank} dies", "")
                    os.kill(os.getpid(), signal.SIGKILL)
                if ctx.rank == behind and deaths[0][1:] == (iteration, place):
                    ctx.store.wait([f"{deaths[0][0]} dies"])
                    raise ctx.subject.PeerFailed("told by other means")
                optimizer.step()
                steps[place] += 1
        dist.all_reduce(torch.zeros(1), group=group)  # nobody leaves while another may still need it

    while True:
        try:
            with ctx.subject.Join([*wrapped, *(optimizers if mirrored else ())]) if joined else nullcontext():
                train()
            break
        except ctx.subject.PeerFailed:
            for place, (model, optimizer) in enumerate(zip(wrapped, optimizers, strict=True)):
                left = regroup(model, optimizer, MADE_BEFORE + steps[place])
                group, steps[place] = left.group, left.steps - MADE_BEFORE
                segments[place].append((steps[place], left.ranks))
    weights = [numbers(model.module.named_parameters()) for model in wrapped]
    return segments, weights, [sums(optimizer, group if mirrored else None) for optimizer in optimizers]


def sums(optimizer, group=None):
    """What the optimizer has added up, by the parameter's place; of a sharded one on one rank, None on the others."""
    if group is not None:
        optimizer.consolidate_state_dict(0)
        if group.rank() != 0:
            return None
    return {place: state["sum"].flatten().tolist() for place, state in optimizer.state_dict()["state"].items()}


def alone(segments, place):
    """One process's parameters of a model, and its optimizer's sums."""
    module = models.Parts("ab")
    optimizer = Finer(module.parameters(), **SGD)
    for iteration in range(STEPS):
        there = next(ranks for first, ranks in reversed(segments) if first <= iteration)
        batches = [data(rank, iteration, place) for rank in there]
        gradients = oracle.averaged_gradients(module, batches, len(there))
        for name, parameter in module.named_parameters():
            parameter.grad = gradients[name]
        optimizer.step()
    return numbers(module.named_parameters()), sums(optimizer)


WAYS = {
    "one model": (((3, 2, 0), (1, 4, 0)), 1, 0, True),
    "one is a step behind": (((3, 2, 0),), 1, 0, True, 1),
    "one is a step behind, without a context": (((0, 3, 1),), 2, 0, False, 2),
    "copies of its shards, far away": (((0, 1, 0), (2, 4, 0)), 1, 3, True),
    "three models": (((1, 3, 1), (2, 5, 2)), 3, 0, True),
    "two models with copies, without a context": (((3, 3, 0), (0, 5, 1)), 2, 1, False),
}


@check("JOIN-057", worlds=(4,), backends=("gloo",), beyond=False, deadline_s=60, scenarios=WAYS, each=True)
def test_who_is_left_goes_on_as_one_process_when_ranks_are_lost_one_after_the_other(ranks, scenario):
    deaths, several, mirrored, _, *behind = scenario
    run = ranks.run(go_on, *scenario, stall_s=30)
    lost = [rank for rank, *_ in deaths]
    for rank, end in enumerate(run.outcomes):
        if rank in lost:
            continue
        assert isinstance(end, Finished), run.summary()
        segments, weights, states = end.value
        for place in range(several):
            followed, ends = segments[place], [(there, first) for first, there in segments[place][1:]]
            left = [tuple(r for r in range(ranks.world) if r not in lost[: place + 1]) for place in range(len(lost))]
            assert [there for there, _ in ends] == left, f"rank {rank}, model {place}: {followed}"
            for (_, iteration, model), (_, first) in zip(deaths, ends, strict=True):
                made = iteration + bool(place < model or (place == model and behind))
                assert made - bool(mirrored) <= first <= made, f"rank {rank}, model {place}: {followed}"
            expected, state = alone(followed, place)
            assert weights[place] == expected, f"rank {rank}, model {place}: {followed}"
            assert states[place] in (None, state), f"rank {rank}, model {place}: {followed}"
