"""A subject's strict mode: what a collective does wrong below it is told before its result is used.

Cells of the fault matrix (`make faults`), and a program whose ranks do not start the same collectives.
"""

import threading
from functools import partial

import torch
import torch.distributed as dist
from torch import nn

from conformance.api.checking import check
from conformance.faults.cells import Cell
from conformance.faults.running import tried
from conformance.faults.training import run_cell
from conformance.fixtures import models
from conformance.fixtures.training import ddp, gradient, gradients, scalar_means
from conformance.ranks import caught
from conformance.subjects import STRICT

STRICTLY = {STRICT: "1"}
#: a rank ends itself before that
DEADLINE_S = 60.0

CELLS = {
    "a sum": "corrupted/first bucket/live/Join",
    "a sum of who has run out": "corrupted/delayed gradients/shadowing/Join with ZeRO",
    "whole numbers": "corrupted/roll call/about to join/interleaved",
    "what is sent": "corrupted/published shard/live/Join with ZeRO",
    "what is sent by who goes on alone": "corrupted/published in backward/alone/reduce-scatter",
    "what is gathered": "corrupted/consolidation/live/Join with ZeRO",
    "one too many": "repeated/second bucket/shadowing/Join",
    "one too many to an owner": "repeated/published in backward/shadowing/reduce-scatter",
    "another dtype": "another dtype/agreement on use/shadowing/Join",
}


@check(
    "DDP-049", worlds=(2, 3), backends=("gloo",), beyond=False, deadline_s=DEADLINE_S, scenarios=CELLS,
    at=lambda cell: (Cell.of(cell).world,),
)  # fmt: skip
def test_in_strict_mode_a_collective_that_does_something_else_is_told(ranks, scenario):
    has_a_strict_mode(ranks.subject)
    cell = Cell.of(scenario)
    found = tried(cell, ranks.subject.name, partial(ranks.run, run_cell, init=False, stall_s=DEADLINE_S, env=STRICTLY))
    assert found.good or found.verdict == "late", f"{cell.id}: {found.verdict}: {found.why}"


def evaluate_alone(ctx):
    """Rank 1 alone evaluates before the second iteration, which begins with a broadcast of buffers."""
    model = ddp(ctx, nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)))

    def use():
        for iteration in range(3):
            if iteration == ctx.rank == 1:
                with torch.no_grad():
                    model(models.divisible(ctx.rank, 7))
            model(models.divisible(ctx.rank, iteration)).sum().backward()

    return caught(use)


@check("DDP-047", worlds=(2, 3), backends=("gloo",), beyond=False)
def test_in_strict_mode_ranks_that_start_different_collectives_are_all_told_which(ranks):
    has_a_strict_mode(ranks.subject)
    for rank, error in enumerate(ranks(evaluate_alone, env=STRICTLY)):
        assert error is not None, f"rank {rank}"
        assert error.is_a(ranks.subject.CollectivesDiffer), f"rank {rank}: {error}"
        other = "ranks 0, 2: " if ranks.world > 2 else "rank 0: "
        for words in ("rank 1: ", other, "buffers", "bucket", "iteration 2"):
            assert words in error.text, f"rank {rank}: {error.text}"


def train_a_classifier(ctx):
    """Gradients of the last layer, of which those of all classes add up to nothing but rounding errors."""
    model = ddp(ctx, nn.Linear(6, 5))
    nn.init.ones_(model.module.weight)
    nn.init.zeros_(model.module.bias)
    for iteration in range(4):
        model.zero_grad()
        numbers = torch.Generator().manual_seed(10 * iteration + ctx.rank)
        rows, labels = torch.randn(7, 6, generator=numbers), torch.randint(5, (7,), generator=numbers)
        nn.functional.cross_entropy(model(rows), labels).backward()
    return gradients(model)


@check("DDP-049", worlds=(2, 3), backends=("gloo",), beyond=False)
def test_in_strict_mode_sums_that_cancel_are_no_damage(ranks):
    has_a_strict_mode(ranks.subject)
    assert ranks(train_a_classifier, env=STRICTLY) == ranks(train_a_classifier)


LARGE = 1.5 * 2.0**127  # as a float32


def train_beyond_numbers(ctx):
    """Over a group of this rank alone, and over all, where a gradient is infinite once, and once so large that their
    sum is. (Two ranks would halve it before they add it up.)"""
    told, alone = [], [dist.new_group([rank]) for rank in range(ctx.world)][ctx.rank]
    for group in (alone, ctx.group):
        model = ddp(ctx, models.scalar(), process_group=group)
        for x in (12.0, LARGE, float("inf"), 12.0):
            model.zero_grad()
            model(torch.tensor([[x + ctx.rank]], device=ctx.device)).sum().backward()
            told.append(gradient(model.module.weight))
    return told


@check("DDP-049", worlds=(3,), backends=("gloo",), beyond=False)
def test_in_strict_mode_infinite_sums_and_groups_of_one_rank_are_no_damage(ranks):
    has_a_strict_mode(ranks.subject)
    infinite = float("inf")
    for rank, told in enumerate(ranks(train_beyond_numbers, env=STRICTLY)):
        assert told[:4] == [12.0 + rank, LARGE, infinite, 12.0 + rank], f"rank {rank}"
        assert told[5] in (LARGE, infinite), f"rank {rank}: {told[5]}"  # by what is divided first
        assert [told[4], *told[6:]] == [13.0, infinite, 13.0], f"rank {rank}"


def make_a_group_meanwhile(ctx):
    """While the model makes what groups it needs, another thread of the program makes one. The gradients, and the error
    of that thread."""
    right, told = dist.new_group, []

    def new_group(*args, **named):
        made = right(*args, **named)
        if not told:
            thread = threading.Thread(target=lambda: told.append(caught(right)))
            thread.start()
            thread.join()
        return made

    dist.new_group = new_group
    try:
        model = ddp(ctx, models.scalar())
        model(models.divisible_scalar(ctx.rank, 0)).sum().backward()
    finally:
        dist.new_group = right
    dist.all_reduce(number := torch.ones(1), group=dist.new_group())
    return gradient(model.module.weight), number.item(), told


@check("DDP-049", worlds=(2, 3), backends=("gloo",), beyond=False)
def test_in_strict_mode_threads_of_the_program_make_groups_as_ever(ranks):
    has_a_strict_mode(ranks.subject)
    for rank, (mean, number, told) in enumerate(ranks(make_a_group_meanwhile, env=STRICTLY)):
        assert [mean] == scalar_means((1,) * ranks.world), f"rank {rank}"
        assert number == ranks.world, f"rank {rank}"
        assert told == [None], f"rank {rank}: {told}"


def has_a_strict_mode(subject):
    return subject.CollectivesDiffer
