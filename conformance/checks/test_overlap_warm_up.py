"""From the first iteration to the first update: the wrapped hook always runs, and nothing happens by halves."""

from dataclasses import replace

import torch
from torch import nn

from conformance.api.checking import check
from conformance.fixtures import models, overlapping
from conformance.fixtures.observing import started
from conformance.fixtures.overlapping import Overlap, assert_as_alone, iteration, names_in, pair_of, published
from conformance.fixtures.training import parameters, private
from conformance.ranks import Caught, caught

ITERATIONS = 6
SEQUENTIAL, INTERLEAVED = Overlap(hook=overlapping.settled), Overlap(True, hook=overlapping.settled)
HOOKS = {"sequential": SEQUENTIAL, "interleaved": INTERLEAVED}
STATIC = {name: replace(how, ddp={"static_graph": True}) for name, how in HOOKS.items()}
DEADLINE_S = 5.0


# -- HOOK-009, HOOK-016: the wrapped hook


class Watching:
    """A hook to extend: averages as usual, and notes each call and what the parameters are meanwhile."""

    def __init__(self):
        self.pair = None
        self.before = {}
        self.calls = []

    def __call__(self, state, bucket):
        now = parameters(self.pair.model)
        names = names_in(self.pair, bucket)
        self.calls.append(
            {
                "index": bucket.index(),
                "last": bucket.is_last(),
                "names": names,
                "same state": state is self.pair.group,
                "elements": bucket.buffer().numel() == sum(parameter.numel() for parameter in bucket.parameters()),
                "moved": sorted(name for name in now if now[name] != self.before[name]),
            }
        )
        return overlapping.settled(state, bucket)


def watch(ctx, how):
    """For each iteration the calls of the wrapped hook."""
    hook = Watching()
    hook.pair = pair = pair_of(ctx, replace(how, hook=hook))
    rows = []
    for number in range(ITERATIONS):
        hook.before, hook.calls = parameters(pair.model), []
        iteration(pair, number)
        rows.append(hook.calls)
    return rows


class PartlyFrozen(models.Sum):
    """A sum of layers, one of which is frozen, beside one that is large and one that is tiny."""

    def __init__(self):
        super().__init__()
        self.layers[1].requires_grad_(False)
        self.layers.append(nn.Linear(4, 4, bias=False))
        nn.init.constant_(self.layers[-1].weight, 1.0)


@check("HOOK-009", "HOOK-016", scenarios=HOOKS, deadline_s=DEADLINE_S)
def test_the_wrapped_hook_is_called_once_for_each_bucket_before_the_bucket_is_stepped(ranks, scenario):
    how = replace(scenario, model=PartlyFrozen)
    trainable = sorted(name for name, p in PartlyFrozen().named_parameters() if p.requires_grad)
    for rank, rows in enumerate(ranks(watch, how)):
        for number, calls in enumerate(rows):
            told = f"rank {rank}, iteration {number}: the hook was called"
            indices, lasts = [call["index"] for call in calls], [call["last"] for call in calls]
            assert indices == list(range(len(calls))), f"{told} with buckets {indices}, not with each once, in order"
            assert lasts == [False] * (len(calls) - 1) + [True], f"{told} with is_last() {lasts}"
            names = sorted(name for call in calls for name in call["names"])
            assert names == trainable, f"{told} with the parameters {names}, not with {trainable}"
            for call in calls:
                bucket = f"with bucket {call['index']}"
                assert call["names"], f"{told} {bucket}, which has no parameters"
                assert call["same state"], f"{told} {bucket} and another state than the one that was registered"
                assert call["elements"], f"{told} {bucket}, whose buffer is not as long as its parameters"
                # sequential: nothing at all has been stepped; interleaved: at most buckets that came before
                early = {name for other in calls[: call["index"]] for name in other["names"]}
                moved = set(call["moved"]) - (early if scenario.interleaved else set())
                assert not moved, f"{told} {bucket} after a step of {sorted(moved)}"
        assert len(rows[-1]) > 1, "one bucket: the check sees nothing"


# -- HOOK-010 to HOOK-013, HOOK-015, HOOK-017: the way to the first update


def progress(ctx, how):
    """For each iteration: what the rank holds, how many messages carried parameters, what the optimizer knew."""
    hook = Watching()
    hook.pair = pair = pair_of(ctx, replace(how, hook=hook))
    rows = []
    for number in range(ITERATIONS):
        hook.before, hook.calls = parameters(pair.model), []
        seen = []
        events = started(ctx, lambda number=number, into=seen: into.append(iteration(pair, number)))
        optim = getattr(pair.zero, "optim", None)
        rows.append((seen[0], len(published(events)), id(optim) if optim is not None and optim.state else None))
    return rows


def progress_of_each(ctx, ways):
    return [progress(ctx, how) for how in ways]


@check("HOOK-010", "HOOK-011", "HOOK-017", deadline_s=DEADLINE_S)
def test_in_a_dynamic_graph_updates_begin_at_once_for_all_parameters_and_never_stop_again(ranks):
    begin_at_once(ranks, list(HOOKS.values()))


@check("HOOK-010", "HOOK-012", "HOOK-017", deadline_s=DEADLINE_S)
def test_in_a_static_graph_updates_begin_at_once_for_all_parameters_and_never_stop_again(ranks):
    begin_at_once(ranks, list(STATIC.values()))


def begin_at_once(ranks, ways):
    for how, *by_rank in zip(ways, *ranks(progress_of_each, ways, trace=True), strict=True):
        begins_at_once(ranks, how, by_rank)


def begins_at_once(ranks, how, by_rank):
    updates = assert_as_alone([[seen for seen, _, _ in rows] for rows in by_rank], how)
    first = updates.index(True)
    assert all(updates[first:]), f"{how}: of the iterations from the first update on these updated: {updates[first:]}"
    for rows in by_rank:
        assert [sent for _, sent, _ in rows[:first]] == [0] * first, "parameters were sent before there was an update"
        assert [optim for _, _, optim in rows[:first]] == [None] * first, "there was a step before the first update"
        assert len({optim for _, _, optim in rows[first:]} - {None}) <= 1, "the optimizer was built more than once"
        assert all_changed(rows, first), "some parameter missed the first update"
    if first:
        ranks.at_limit(f"the first {first} iterations leave the parameters unchanged")


def all_changed(rows, first):
    start = parameters(models.Sum())
    return all(rows[first][0].parameters[name] != values for name, values in start.items())


def know(ctx, how):
    """For each iteration: whether parameters changed, the status, and the buckets that were noted and that came."""
    hook = Watching()
    hook.pair = pair = pair_of(ctx, replace(how, hook=hook))
    rows = []
    for number in range(ITERATIONS):
        hook.before, hook.calls = parameters(pair.model), []
        iteration(pair, number)
        info = private(pair.zero, "_overlap_info")
        names = {id(parameter): name for name, parameter in pair.model.named_parameters()}
        noted = [tuple(names[id(one)] for one in params) for params in info.params_per_bucket]
        moved = parameters(pair.model) != hook.before
        rows.append((moved, int(info.status), noted, [call["names"] for call in hook.calls], info.total_size))
    return rows


def know_each(ctx, ways):
    return [know(ctx, how) for how in ways]


@check("HOOK-013", "HOOK-015", worlds=(1, 2, 3), deadline_s=DEADLINE_S)
def test_the_optimizer_knows_how_far_it_is_and_which_buckets_came(ranks):
    whole = [replace(how, model=model) for how in HOOKS.values() for model in (models.Sum, models.SumBackwards)]
    ways = [*whole, *STATIC.values(), *(replace(how, shard=True) for how in whole)]
    for how, *by_rank in zip(ways, *ranks(know_each, ways), strict=True):
        knows(how, by_rank)


def knows(how, by_rank):
    total = sum(parameter.numel() for parameter in models.Sum().parameters())
    for rows in by_rank:
        statuses = [status for _, status, _, _, _ in rows]
        assert statuses == sorted(statuses)
        for moved, status, noted, _, size in rows:
            assert moved == (status == 2), "initialised is whoever updates"
            assert bool(noted) == (status > 0), "buckets are noted from the iteration on that collects them"
            assert size == (total if how.shard and status else 0 if how.shard else None)
        _, status, noted, came, _ = rows[-1]
        assert status == 2
        assert noted == came


# -- HOOK-014, HOOK-016: what torch's helpers refuse


def force_the_status(ctx):
    """Claim before the first backward that the buckets are known; what the backward then raises."""
    status = private(ctx.subject.zero, "_OverlapStatus").INITIALIZED
    pair = pair_of(ctx, SEQUENTIAL)
    private(pair.zero, "_overlap_info").status = status
    return caught(iteration, pair, 0)


@check("HOOK-014", worlds=(1, 2), deadline_s=DEADLINE_S)
def test_an_optimizer_that_claims_to_know_buckets_before_they_are_final_is_refused(ranks):
    for error in ranks(force_the_status):
        assert isinstance(error, Caught)
        assert error.is_a(AssertionError)


class Empty:
    """A bucket without parameters."""

    def parameters(self):
        return []

    def buffer(self):
        return torch.empty(0)

    def index(self):
        return 0


def note_an_empty_bucket(ctx):
    save = private(ctx.subject.ddp_zero_hook, "_save_ddp_bucket_info")
    return caught(save, Empty(), pair_of(ctx, SEQUENTIAL).zero)


@check("HOOK-016", worlds=(1,))
def test_noting_a_bucket_without_parameters_is_refused(ranks):
    [error] = ranks(note_an_empty_bucket)
    assert isinstance(error, Caught)
    assert error.is_a(AssertionError)
