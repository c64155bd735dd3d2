"""no_sync: nothing is sent inside, and the first pass that begins outside averages all that was accumulated."""

import itertools
from contextlib import nullcontext
from functools import partial

import torch
import torch.distributed as dist
from torch import nn

from conformance.api import oracle
from conformance.api.checking import MANY, WORLDS, check
from conformance.fixtures import models
from conformance.fixtures.training import EVERY_WAY, ddp, gradient, gradients, numbers, private, scalar_means
from conformance.ranks import caught

TINY_MIB = 1e-4
WAYS = ({}, {"find_unused_parameters": True}, {"gradient_as_bucket_view": True}, {"bucket_cap_mb": TINY_MIB})


def accumulate(ctx, options):
    """Two iterations inside, one outside, and one more from zero; gradients and number of collectives after each."""
    model = ddp(ctx, models.Sum(3), **options)
    seen, sent = [], []
    for iteration, context in enumerate((model.no_sync, model.no_sync, nullcontext, nullcontext)):
        start = len(ctx.trace())
        if iteration == 3:
            model.zero_grad()
        with context():
            model(models.divisible(ctx.rank, iteration)).sum().backward()
        seen.append(gradients(model))
        sent.append(len(ctx.trace()) - start)
    return seen, sent


def accumulate_every_way(ctx):
    return [accumulate(ctx, options) for options in WAYS]


def summed_alone(batches):
    """The gradients of one process that runs all ``batches``, given as (rank, iteration)."""
    model = models.Sum(3)
    for rank, iteration in batches:
        model(models.divisible(rank, iteration)).sum().backward()
    return gradients(model)


def accumulated_alone(world):
    """By rank, what ``accumulate`` must show: two local sums, the mean of what all accumulated, and one plain mean."""
    all_of = [[(rank, i) for rank in range(world) for i in some] for some in ((0, 1, 2), (3,))]
    means = [
        {name: [value / world for value in values] for name, values in summed_alone(batches).items()}
        for batches in all_of
    ]
    return [[summed_alone([(rank, 0)]), summed_alone([(rank, 0), (rank, 1)]), *means] for rank in range(world)]


@check("DDP-072", "DDP-073", worlds=WORLDS, beyond=False)
def test_inside_gradients_add_up_locally_and_the_first_pass_outside_averages_all(ranks):
    alone = accumulated_alone(ranks.world)
    for rank, told in enumerate(ranks(accumulate_every_way)):
        for options, (seen, _) in zip(WAYS, told, strict=True):
            assert seen == alone[rank], f"rank {rank}, {options}"


@check("DDP-072", worlds=MANY)
def test_inside_nothing_at_all_is_sent_for_a_model_without_buffers(ranks):
    for told in ranks(accumulate_every_way, trace=True):
        for options, (_, sent) in zip(WAYS, told, strict=True):
            assert sent[:2] == [0, 0], options
            assert min(sent[2:]) > 0, "the collective trace recorded nothing of a synchronised pass"


def first_rank_s(_state, buffers):
    for buffer in buffers.values():
        dist.broadcast(buffer, 0)


def accumulate_unequally(ctx, hooked):
    """Rank r accumulates over r modulo 3 batches before each synchronised one; gradients, and the counter at the first
    forward of each iteration."""
    model, seen, firsts = ddp(ctx, models.Counting(1.0 + 10.0 * ctx.rank)), [], []
    if hooked:
        private(model, "_register_buffer_comm_hook")(None, first_rank_s)  # after the forward
    x = 12 * models.place(ctx.rank, 0)
    for _ in range(4):
        model.zero_grad()
        firsts.append(len(model.module.seen))
        with model.no_sync():
            for _ in range(ctx.rank % 3):
                model(x).sum().backward()
        model(x).sum().backward()
        seen.append(gradient(model.module.a.weight))
    return seen, [model.module.seen[place] for place in firsts]


@check("DDP-073", "DDP-078", worlds=MANY, beyond=False, scenarios={"broadcast": False, "hook": True})
def test_ranks_may_accumulate_over_unequally_many_batches_beside_buffers(ranks, scenario):
    mean = sum(12 * (rank + 1) * (rank % 3 + 1) for rank in range(ranks.world)) / ranks.world
    for rank, (seen, firsts) in enumerate(ranks(accumulate_unequally, scenario)):
        assert seen == [mean] * 4, f"rank {rank}"
        if not scenario:
            assert firsts == [0, 1, 2, 3], f"rank {rank} did not begin each iteration with rank 0's counter"


def accumulate_unequally_in_two(ctx):
    """The same in two models at once, of which the second has a buffer; the gradients of both."""
    plain, counting, seen = ddp(ctx, models.scalar()), ddp(ctx, models.Counting(1.0)), []
    x = 12 * models.place(ctx.rank, 0)
    for _ in range(4):
        plain.zero_grad()
        counting.zero_grad()
        with plain.no_sync(), counting.no_sync():
            for _ in range(ctx.rank % 3):
                (plain(x) + counting(x)).sum().backward()
        (plain(x) + counting(x)).sum().backward()
        seen.append((gradient(plain.module.weight), gradient(counting.module.a.weight)))
    return seen


@check("DDP-073", "DDP-078", worlds=MANY, deadline_s=6, beyond=False)
def test_ranks_may_accumulate_over_unequally_many_batches_in_two_models_of_which_one_has_buffers(ranks):
    mean = sum(12 * (rank + 1) * (rank % 3 + 1) for rank in range(ranks.world)) / ranks.world
    assert ranks(accumulate_unequally_in_two) == [[(mean, mean)] * 4] * ranks.world


def cross_the_border(ctx):
    """Forward outside with backward inside, and the other way round."""
    x, told = 12 * models.place(ctx.rank, 0), []
    for options in EVERY_WAY:
        for forward_inside in (False, True):
            model = ddp(ctx, models.scalar(), **options)
            for iteration in range(3):  # in the last one buckets are rebuilt, and a static graph is known
                model.zero_grad()
                inside = forward_inside and iteration == 2
                with model.no_sync() if inside else nullcontext():
                    loss = model(x).sum()
                with model.no_sync() if iteration == 2 and not inside else nullcontext():
                    loss.backward()
            told.append(gradient(model.module.weight))
    return told


@check("DDP-074", worlds=MANY, beyond=False)
def test_what_counts_is_where_the_forward_ran(ranks):
    mean = 12 * sum(range(1, ranks.world + 1)) / ranks.world
    assert ranks(cross_the_border) == [[mean, 12.0 * (rank + 1)] * len(EVERY_WAY) for rank in range(ranks.world)]


def go_backward_inside_first(ctx):
    """A forward inside, then one outside; the gradient after the backward of the one, and after that of the other."""
    x, told = 12 * models.place(ctx.rank, 0), []
    for options in EVERY_WAY:
        model = ddp(ctx, models.scalar(), **options)
        for _ in range(4):
            model.zero_grad()
            with model.no_sync():
                inside = model(x).sum()
            outside = model(2 * x).sum()
            inside.backward()
            told.append(gradient(model.module.weight))
            outside.backward()
            told.append(gradient(model.module.weight))
    return told


@check("DDP-074", worlds=MANY, beyond=False)
def test_a_forward_inside_stays_local_while_one_outside_awaits_its_backward(ranks):
    mean = 36 * sum(range(1, ranks.world + 1)) / ranks.world
    for rank, seen in enumerate(ranks(go_backward_inside_first)):
        assert seen == [12.0 * (rank + 1), mean] * 4 * len(EVERY_WAY), f"rank {rank}"


def nest(ctx):
    model = ddp(ctx, models.scalar())
    setting = partial(getattr, model, "require_backward_grad_sync", None)  # which nobody promises
    settings = [setting()]
    with model.no_sync():
        with model.no_sync():
            settings.append(setting())
        settings.append(setting())
    settings.append(setting())

    def fail(depth):
        with model.no_sync():
            if depth:
                fail(depth - 1)
            raise KeyError("from inside")

    error = caught(fail, 1)
    return [*settings, setting()], error and error.kinds[0]


def train_after_nesting(ctx):
    """A pass inside the outer context, after an inner one has ended, is still local."""
    model, seen = ddp(ctx, models.scalar()), []
    with model.no_sync():
        with model.no_sync():
            pass
        model(12 * models.place(ctx.rank, 0)).sum().backward()
        seen.append(gradient(model.module.weight))
    caught(leave_by_error, model)
    model.zero_grad()
    model(12 * models.place(ctx.rank, 0)).sum().backward()
    return [*seen, gradient(model.module.weight)]


def leave_by_error(model):
    with model.no_sync():
        raise KeyError("from inside")


@check("DDP-075", worlds=WORLDS)
def test_leaving_restores_the_setting_found_even_by_an_error(ranks):
    for settings, error in ranks(nest):
        assert settings in ([True, False, False, True, True], [None] * 5)
        assert error == "KeyError"


@check("DDP-075", worlds=MANY, beyond=False)
def test_after_an_inner_context_the_outer_one_still_holds(ranks):
    mean = 12 * sum(range(1, ranks.world + 1)) / ranks.world
    assert ranks(train_after_nesting) == [[12.0 * (rank + 1), mean] for rank in range(ranks.world)]


def leave_one_after_the_other(ctx):
    """Each rank leaves only when the one before it has left: an exit that communicated would wait for ever."""
    model = ddp(ctx, models.scalar())
    with model.no_sync():
        model(12 * models.place(ctx.rank, 0)).sum().backward()
        if ctx.rank > 0:
            ctx.store.wait([f"left/{ctx.rank - 1}"])
    held = gradient(model.module.weight)
    ctx.store.set(f"left/{ctx.rank}", "1")
    return held


@check("DDP-076", worlds=MANY)
def test_leaving_waits_for_nobody_and_averages_nothing(ranks):
    assert ranks(leave_one_after_the_other) == [12.0 * (rank + 1) for rank in range(ranks.world)]


def use_b_inside_only(ctx, as_view):
    model = ddp(ctx, models.Branches(), find_unused_parameters=True, gradient_as_bucket_view=as_view)
    x = 12 * models.place(ctx.rank, 0)
    with model.no_sync():
        model(x, with_b=ctx.rank == 1).sum().backward()
        model(x, with_b=False).sum().backward()
    model(x, with_b=False).sum().backward()
    first = gradients(model)
    model.zero_grad(set_to_none=True)
    model(x, with_b=False).sum().backward()
    return first, gradients(model)


def use_b_inside_only_in_both_ways(ctx):
    return [use_b_inside_only(ctx, as_view) for as_view in (False, True)]


@check("DDP-077", worlds=MANY, beyond=False)
def test_a_parameter_used_only_inside_counts_as_used_in_the_closing_pass_alone(ranks):
    world = ranks.world
    mean = 12 * sum(range(1, world + 1)) / world
    for first, second in [each for told in ranks(use_b_inside_only_in_both_ways) for each in told]:
        assert first == {"a.weight": [3 * mean], "b.weight": [24.0 / world]}
        assert second == {"a.weight": [mean], "b.weight": None}


def use_b_inside_after_a_cast(ctx):
    """A pass, then one inside that uses b and one outside that does not; in between the module may be cast."""
    told = []
    for cast in (None, torch.nn.Module.double):
        model = ddp(ctx, models.Branches(), find_unused_parameters=True)
        x = 12 * models.place(ctx.rank, 0)
        model(x, with_b=True).sum().backward()
        model.zero_grad()
        if cast is not None:
            x = x.double()
            cast(model.module)
        with model.no_sync():
            model(x, with_b=True).sum().backward()
        error = caught(lambda model=model, x=x: model(x, with_b=False).sum().backward())
        told.append((error, gradients(model)))
    return told


@check("DDP-077", worlds=MANY, beyond=False)
def test_a_parameter_used_only_inside_counts_as_used_also_after_a_cast_or_the_cast_is_refused(ranks):
    mean = 12 * sum(range(1, ranks.world + 1)) / ranks.world
    for rank, ((error, plain), (refused, cast)) in enumerate(ranks(use_b_inside_after_a_cast)):
        assert error is None
        assert plain == {"a.weight": [2 * mean], "b.weight": [mean]}
        if refused is not None:
            assert refused.is_a(RuntimeError), refused
            ranks.at_limit("a model that was cast after wrapping is refused")
        else:
            assert cast == plain, f"rank {rank}, after a cast"


MIXED = ("ab-c-", "a-b", "ab-c", "a-bc-")  # inside are the last two, the first, the middle one, both ends


def mix_inside_and_outside(ctx, mixed):
    """One backward through forwards that use a part each, some of them inside (marked by a dash)."""
    told = []
    for parts, as_view in itertools.product(mixed, (False, True)):
        options = {"find_unused_parameters": True, "gradient_as_bucket_view": as_view}
        model = ddp(ctx, models.Parts(), bucket_cap_mb=TINY_MIB, **options)
        for iteration in range(2):
            model.zero_grad(set_to_none=True)
            losses = []
            for place, part in enumerate(parts.replace("-", "")):
                with model.no_sync() if f"{part}-" in parts else nullcontext():
                    model.module.use = part
                    losses.append(model(models.divisible(ctx.rank, 4 * iteration + place)).sum())
            torch.stack(losses).sum().backward()
            told.append(gradients(model))
    return told


@check("DDP-077", worlds=MANY, beyond=False)
def test_one_backward_through_forwards_inside_and_outside_reduces_what_any_of_them_uses(ranks):
    world, alone, expected = ranks.world, models.Parts(), []
    for parts, _, iteration in itertools.product(MIXED, ("copies", "views"), range(2)):
        found = {}
        for place, part in enumerate(parts.replace("-", "")):
            alone.use = part
            batches = [models.divisible(rank, 4 * iteration + place) for rank in range(world)]
            found |= oracle.averaged_gradients(alone, batches, world)
        expected.append(numbers((name, found.get(name)) for name, _ in alone.named_parameters()))
    assert ranks(mix_inside_and_outside, MIXED) == [expected] * world


def count_through(ctx):
    """One normal pass, three inside, two outside; each rank's counter grows by a step of its own."""
    model = ddp(ctx, models.Counting(1.0 + 10.0 * ctx.rank))
    for inside in (False, True, True, True, False, False):
        with model.no_sync() if inside else nullcontext():
            model(torch.ones(1, 1)).sum().backward()
    return model.module.seen


@check("DDP-078", worlds=MANY)
def test_buffers_are_rank_0s_again_by_the_second_pass_outside_at_the_latest(ranks):
    seen = ranks(count_through)
    assert seen[0] == [0, 1, 2, 3, 4, 5]
    for rank, mine in enumerate(seen[1:], start=1):
        step = 1.0 + 10.0 * rank
        assert mine[0] == 0
        assert mine[5] == 5, f"rank {rank} never received rank 0's buffer again: {mine}"
        for place in range(1, 5):
            assert mine[place] in (seen[0][place], mine[place - 1] + step), f"rank {rank}: {mine}"
    if any(mine[4] != 4 for mine in seen[1:]):
        ranks.at_limit("the first synchronised forward after no_sync does not broadcast buffers")


def begin_inside(ctx):
    told = []
    for unused in (False, True):
        model = ddp(ctx, models.Branches() if unused else nn.Sequential(models.scalar()), static_graph=True)
        seen = []

        def loop(model=model, seen=seen):
            for iteration in range(4):
                with model.no_sync() if iteration == 0 else nullcontext():
                    model(models.divisible_scalar(ctx.rank, iteration)).sum().backward()
                seen.append(list(gradients(model).values()))
                if iteration:
                    model.zero_grad(set_to_none=True)

        told.append((caught(loop), seen))
    return told


@check("DDP-079", worlds=MANY, beyond=False)
def test_a_static_graph_may_begin_inside_or_says_why_not(ranks):
    def local(rank, iteration):
        return models.divisible_scalar(rank, iteration).item()

    means = scalar_means((4,) * ranks.world)
    for rank, told in enumerate(ranks(begin_inside)):
        rows = [local(rank, 0), means[0] + means[1], means[2], means[3]]
        for unused, (error, seen) in zip((False, True), told, strict=True):
            if error is None:
                assert seen == [[[row], None] if unused else [[row]] for row in rows], f"rank {rank}"
            else:
                assert "no_sync" in error.text, f"the refusal names neither cause nor cure: {error}"
                assert "static_graph" in error.text
                ranks.at_limit("static_graph cannot begin inside no_sync")
