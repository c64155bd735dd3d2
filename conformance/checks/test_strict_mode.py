"""A subject's strict mode: what a collective does wrong below it is told before its result is used.

Cells of the fault matrix (`make faults`), and a program whose ranks do not start the same collectives.
"""

import itertools
import threading
import time
from functools import partial

import torch
import torch.distributed as dist
from torch import nn

from conformance.api.checking import check
from conformance.checks.test_failures_unguarded import with_notes
from conformance.faults.cells import Cell
from conformance.faults.running import tried
from conformance.faults.training import run_cell
from conformance.fixtures import models
from conformance.fixtures.training import ddp, gradient, gradients, scalar_means
from conformance.ranks import caught
from conformance.ranks.recording import RecordingGroup, recorded
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
        for words in ("rank 1: buffers", "from rank 0", f"{other}bucket ", "iteration 2", "No data were mixed"):
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


class Doubling(RecordingGroup):
    """A group whose collectives come out twice as large on all ranks alike, once they are to."""

    doubles = False


def _doubled(method):
    right = getattr(RecordingGroup, method)

    def call(self, tensors, *args, **named):
        work = right(self, tensors, *args, **named)
        if Doubling.doubles and self is dist.group.WORLD:
            work.wait()
            for each in tensors:
                each.mul_(2)
        return work

    return call


for _name in ("allreduce", "broadcast"):
    setattr(Doubling, _name, _doubled(_name))


class Imaginary(nn.Module):
    """Its gradient has no real part."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1, dtype=torch.complex64))

    def forward(self, x):
        return (x * self.weight).imag


def damage_alike(ctx):
    """What is told where sums of each kind, and what one rank sends, are damaged alike on all ranks."""
    told = {}
    with recorded("gloo", Doubling):
        dist.init_process_group(
            "gloo", store=dist.PrefixStore("group", ctx.store), rank=ctx.rank, world_size=ctx.world
        )
        kinds = {
            "numbers": (models.scalar(), False), "imaginary numbers": (Imaginary(), False),
            "buffers": (models.Counting(1.0), False), "whole numbers": (models.scalar(), True),
        }  # fmt: skip
        for name, (module, joined) in kinds.items():
            model, x = ddp(ctx, module), models.divisible_scalar(ctx.rank, 0)
            model(x).sum().backward()

            def train(model=model, x=x, joined=joined, sends=name == "buffers"):
                with model.join(enable=joined):
                    Doubling.doubles = sends or joined
                    loss = model(x).sum()
                    Doubling.doubles = True
                    loss.backward()

            told[name] = caught(train)
            Doubling.doubles = False
    return told


@check("DDP-049", worlds=(2, 3), backends=("gloo",), beyond=False)
def test_in_strict_mode_damage_that_is_alike_on_all_ranks_is_told(ranks):
    has_a_strict_mode(ranks.subject)
    for rank, told in enumerate(ranks(damage_alike, init=False, env=STRICTLY)):
        for kind, error in told.items():
            assert error is not None, f"rank {rank}: nothing is said of {kind}"
            assert error.is_a(ranks.subject.CollectivesDiffer), f"rank {rank}, {kind}: {error}"
            assert "did not do what it should" in error.text, f"rank {rank}, {kind}: {error}"
            assert ("sent is not in it" in error.text) == (kind == "buffers"), f"rank {rank}, {kind}: {error}"


def train_another_alone(ctx):
    """In a context of a model with a class whose name is longer than a description may be, the last rank alone trains
    another model. The errors, with notes; they leave the context one after the other."""
    named = type("Ö" * 200, (ctx.subject.DistributedDataParallel,), {})
    model, other = named(models.scalar()), ddp(ctx, models.scalar())

    def train():
        with model.join():
            try:
                used = other if ctx.rank == ctx.world - 1 else model
                used(models.divisible_scalar(ctx.rank, 0)).sum().backward()
            except RuntimeError:
                time.sleep(0.1 * ctx.rank)
                raise

    error = with_notes(train)
    ctx.meet("all are told")
    return error


@check("DDP-047", worlds=(2, 3), backends=("gloo",), beyond=False)
def test_in_strict_mode_long_descriptions_are_told_too_and_no_rank_is_blamed(ranks):
    has_a_strict_mode(ranks.subject)
    last, others = ranks.world - 1, "ranks 0, 1: " if ranks.world > 2 else "rank 0: "
    for rank, error in enumerate(ranks(train_another_alone, env=STRICTLY)):
        assert error is not None, f"rank {rank}"
        assert error.is_a(ranks.subject.CollectivesDiffer), f"rank {rank}: {error}"
        for words in (f"rank {last}: bucket 0", f"{others}Join: ", "Ö" * 100, "all-reduce of 1 x torch.float32"):
            assert words in error.text, f"rank {rank}: {error.text}"
        assert "left the join context" not in error.text, f"rank {rank}: {error.text}"


def start_every_kind(ctx):
    """What comes of collectives of every kind: sums of numbers, also complex ones, and of rows, buffers, sums for one
    rank, parameters of their owners, small and large, and states."""
    subject, numbered = ctx.subject, models.divisible(ctx.rank, 0).to(ctx.device)
    several = [(ddp(ctx, module.to(ctx.device)), x) for module, x in (
        (models.Complex(), numbered), (nn.BatchNorm1d(4), numbered),
        (nn.Embedding(4, 1, sparse=True), torch.tensor([1, ctx.rank], device=ctx.device)), (models.Sum(), numbered),
    )]  # fmt: skip
    sharded = several[-1][0]
    overlapped = subject.ZeroRedundancyOptimizer(sharded.parameters(), torch.optim.SGD, lr=0.5, overlap_with_ddp=True)
    reduce = subject.default_hooks.allreduce_hook
    sharded.register_comm_hook(None, subject.hook_with_zero_step(reduce, sharded, overlapped, reduce_scatter=True))
    for (model, x), _ in itertools.product(several, range(3)):
        model.zero_grad()
        model(x).sum().backward()
    owned = [nn.Parameter(torch.ones(numel, device=ctx.device)) for numel in (1 << 18, 3)]
    zero = subject.ZeroRedundancyOptimizer(owned, torch.optim.SGD, lr=0.5, momentum=0.5)
    for parameter in owned:
        parameter.grad = parameter.detach() * 3
    zero.step()
    zero.consolidate_state_dict(0)
    states = zero.state_dict()["state"] if ctx.rank == 0 else {}
    kept = [state["momentum_buffer"].unique().tolist() for _, state in sorted(states.items())]
    left = [each for model, _ in several for each in (*model.buffers(), *model.parameters())]
    left += [each.grad.to_dense() for model, _ in several for each in model.parameters() if each.grad is not None]
    found = [(torch.view_as_real(each) if each.is_complex() else each).detach().flatten().tolist() for each in left]
    return found, [parameter.unique().tolist() for parameter in owned], kept


@check("DDP-049", worlds=(2, 3), backends=("gloo",), beyond=False)
def test_in_strict_mode_collectives_of_every_kind_are_no_damage(ranks):
    has_a_strict_mode(ranks.subject)
    assert ranks(start_every_kind, env=STRICTLY) == ranks(start_every_kind)
