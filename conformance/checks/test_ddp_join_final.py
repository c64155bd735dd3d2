"""Leaving a context: every rank holds what one of the last joiners holds, and nothing else is touched."""

from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn

from conformance.api.checking import MANY, check
from conformance.fixtures import models
from conformance.fixtures.observing import mixed, or_lacks_accelerator
from conformance.fixtures.training import ddp, gradient, logging_data, parameters, private
from conformance.ranks import caught


class Kept(nn.Module):
    """One managed and one ignored parameter and buffer of each kind that a final broadcast could touch."""

    def __init__(self):
        super().__init__()
        self.a = models.scalar()
        self.loose = nn.Parameter(torch.ones(2))
        self.register_buffer("flag", torch.zeros(2, dtype=torch.bool))  # first, and shorter than a word
        self.register_buffer("number", torch.zeros(2))
        self.register_buffer("whole", torch.zeros(2, dtype=torch.int64))
        self.register_buffer("passing", torch.zeros(2), persistent=False)
        self.register_buffer("loose_number", torch.zeros(2))

    def forward(self, x):
        return self.a(x) + self.loose.sum()


def overwrite(model, mark):
    """Give every parameter and buffer of a rank the value ``mark``."""
    with torch.no_grad():
        for tensor in [*model.parameters(), *model.buffers()]:
            tensor.fill_(mark)


def drift_and_leave(ctx, schedules):
    """``synchronised``: the iterations whose gradients are; the others are local, and count for who came last."""
    told = []
    for schedule, synchronised in schedules:
        model = ddp(ctx, models.chain(2))
        with model.join():
            for iteration in range(schedule[ctx.rank]):
                with nullcontext() if iteration < synchronised else model.no_sync():
                    model(models.integers(2, 4)).sum().backward()
            overwrite(model, ctx.rank + 1)
        told.append(sorted({value for values in parameters(model).values() for value in values}))
    return told


def last_joiner(schedule):
    return max(rank for rank, count in enumerate(schedule) if count == max(schedule))


@check("DDPJ-016", "DDPJ-017", "DDPJ-018", worlds=MANY)
def test_all_ranks_leave_with_the_weights_of_the_highest_last_joiner(ranks):
    world = ranks.world
    first_alone = tuple(3 if rank == 0 else 1 for rank in range(world))
    second_alone = tuple(3 if rank == 1 else 2 for rank in range(world))
    tied_low = tuple(2 if rank < max(world - 1, 1) else 0 for rank in range(world))  # the highest rank joins first
    tied_high = tuple(2 if rank == 0 else 3 for rank in range(world))
    even = (2,) * world
    nothing = (0,) * world
    several = [first_alone, second_alone, tied_low, tied_high, even, nothing]
    every = [(schedule, synchronised) for schedule in several for synchronised in (3, 1)]
    for rank, told in enumerate(ranks(drift_and_leave, every)):
        for (schedule, _), values in zip(every, told, strict=True):
            assert values == [last_joiner(schedule) + 1], f"rank {rank} after schedule {schedule}"


def end_with_a_forward(ctx, schedule):
    return or_lacks_accelerator(ctx, lambda: end_in_mixed_precision(ctx, schedule))


def end_in_mixed_precision(ctx, schedule):
    """The last iteration of all is a forward that nobody differentiates."""
    model = mixed(ctx, models.scalar(), {"param_dtype": torch.bfloat16})
    weight = model.module.weight
    overwrite(model, 1 + 2.0**-20 * ctx.rank)  # which bfloat16 cannot tell from 1
    with model.join():
        for iteration in range(schedule[ctx.rank]):
            output = model(models.divisible_scalar(ctx.rank, iteration))
            if iteration < max(schedule) - 1:
                output.sum().backward()
    return weight.dtype, weight.unique().tolist()


@check("DDPJ-016", worlds=MANY)
def test_in_mixed_precision_too_all_ranks_leave_with_the_last_joiners_full_weights(ranks):
    world = ranks.world
    several = ((*[0] * (world - 1), 1), (3, *[1] * (world - 1)), (2,) * world)
    for schedule, told in ranks.each(end_with_a_forward, several):
        expected = (torch.float32, [1 + 2.0**-20 * last_joiner(schedule)])
        assert told == [expected] * world, f"schedule {schedule}"


def leave_with_buffers(ctx, schedule):
    """With the buffers broadcast or not; and once more, the last iteration of all under no_sync."""
    told = []
    for broadcast, held_back in ((True, 0), (False, 0), (True, max(schedule))):
        model = ddp(ctx, Kept(), broadcast_buffers=broadcast)
        with model.join():
            for number in range(1, 1 + schedule[ctx.rank]):
                with model.no_sync() if number == held_back else nullcontext():
                    model(torch.ones(1, 1)).sum().backward()
            overwrite(model, ctx.rank % 2)  # 0 or 1, so that the boolean buffer can tell
        told.append({name: buffer.tolist() for name, buffer in model.module.named_buffers()})
    return told


@check("DDPJ-019", worlds=MANY)
def test_buffers_follow_the_last_joiner_exactly_if_buffers_are_broadcast(ranks):
    schedules = [tuple(2 if rank == last else 1 for rank in range(ranks.world)) for last in (0, 1)]
    for last, (_, told) in enumerate(ranks.each(leave_with_buffers, schedules)):
        for rank, (on, off, held_back) in enumerate(told):
            assert on == marked(last), f"broadcast_buffers=True, rank {rank}, last joiner {last}"
            assert held_back == marked(last), f"after an end under no_sync, rank {rank}, last joiner {last}"
            assert off == marked(rank % 2), f"broadcast_buffers=False, rank {rank}, last joiner {last}"


def marked(value):
    return {
        "number": [float(value)] * 2,
        "whole": [value] * 2,
        "flag": [bool(value)] * 2,
        "passing": [float(value)] * 2,
        "loose_number": [float(value)] * 2,
    }


class Replacing(nn.Module):
    """A scalar layer beside a buffer that every forward puts a new tensor in the place of."""

    def __init__(self, step):
        super().__init__()
        self.a = models.scalar()
        self.step = step
        self.register_buffer("count", torch.zeros(2))

    def forward(self, x):
        self.count = self.count + self.step
        return self.a(x)


def leave_with_replaced(ctx, schedule):
    """The buffer at the end of the loop and after the block."""
    model = ddp(ctx, Replacing(ctx.rank + 1))
    with model.join():
        for _ in range(schedule[ctx.rank]):
            model(torch.ones(1, 1)).sum().backward()
        before = model.module.count.tolist()
    return before, model.module.count.tolist()


@check("DDPJ-019", worlds=MANY)
def test_a_buffer_that_the_last_forward_replaced_follows_the_last_joiner(ranks):
    schedules = [tuple(2 if rank == last else 1 for rank in range(ranks.world)) for last in (0, 1)]
    for last, (_, told) in enumerate(ranks.each(leave_with_replaced, schedules)):
        assert [after for _, after in told] == [told[last][0]] * ranks.world, f"last joiner {last}"


def leave_with_ignored(ctx, schedule):
    model = Kept()
    ignore = private(ctx.subject.DistributedDataParallel, "_set_params_and_buffers_to_ignore_for_model")
    ignore(model, ["loose", "loose_number"])
    model = ddp(ctx, model)
    with model.join():
        for _ in range(schedule[ctx.rank]):
            model(torch.ones(1, 1)).sum().backward()
        overwrite(model, ctx.rank)
    module = model.module
    return module.loose.tolist(), module.loose_number.tolist(), module.a.weight.item(), module.number.tolist()


@check("DDPJ-020", worlds=MANY)
def test_ignored_parameters_and_buffers_stay_as_each_rank_left_them(ranks):
    schedule = tuple(2 if rank == 0 else 1 for rank in range(ranks.world))
    for rank, seen in enumerate(ranks(leave_with_ignored, schedule)):
        assert seen == ([rank] * 2, [rank] * 2, 0.0, [0.0] * 2)


def ask_for_nobody(ctx):
    model = ddp(ctx, models.scalar())
    found = caught(private(model, "_find_common_rank"), ctx.rank, False)
    return found, logging_data(model)


def ask_for_the_highest(ctx, candidates):
    return private(ddp(ctx, models.scalar()), "_find_common_rank")(ctx.rank, ctx.rank in candidates)


@check("DDPJ-021", worlds=MANY)
def test_a_search_for_authority_without_candidates_raises_everywhere_and_is_logged(ranks):
    for error, logged in ranks(ask_for_nobody):
        assert error is not None
        assert error.is_a(ValueError)
        assert logged.get("has_error"), "the error is not in the model's log"
        assert any(word in logged["error"].lower() for word in ("bug", "internal"))


@check("DDPJ-017", "DDPJ-021", worlds=MANY)
def test_the_highest_candidate_is_found(ranks):
    assert ranks(ask_for_the_highest, (0,)) == [0] * ranks.world
    assert ranks(ask_for_the_highest, (0, 1)) == [1] * ranks.world


def leave_in_subgroup(ctx, counts, members):
    group = dist.new_group(members)
    if ctx.rank not in members:
        return None
    here = members.index(ctx.rank)
    model = Kept()
    model = ddp(ctx, model, process_group=group)
    averages = []
    with model.join():
        for _ in range(counts[here]):
            model.zero_grad()
            model(torch.full((1, 1), 12.0 * (here + 1))).sum().backward()
            averages.append(gradient(model.module.a.weight))
        overwrite(model, ctx.rank)
    return averages, model.module.a.weight.item(), model.module.number.tolist()


@check("DDPJ-022", worlds=(3, 4))
def test_in_a_subgroup_ranks_count_within_the_group(ranks):
    members = [1, ranks.world - 1]
    for counts, seen in ranks.each(leave_in_subgroup, ((1, 2), (2, 1), (2, 2), (0, 1)), members):
        last = members[last_joiner(counts)]
        for here, member in enumerate(members):
            averages, weight, buffer = seen[member]
            active = [[r for r in (0, 1) if counts[r] > i] for i in range(counts[here])]
            assert averages == [sum(12.0 * (r + 1) for r in rows) / 2 for rows in active]
            assert (weight, buffer) == (last, [last] * 2), f"global rank {member}, counts {counts}"
