"""Programs around an overlapped step: wrappers in turns, a warm-up, schedulers, failures, checkpoints in a context.

Most use what only a subject has whose hooks take further keywords (``warm_up_iterations``); the others go without them.
"""

import collections
import copy
import itertools
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from torch import nn

from conformance.api import oracle
from conformance.api.checking import MANY, check
from conformance.fixtures import models, overlapping
from conformance.fixtures.machines import HOSTS, far_apart
from conformance.fixtures.observing import assert_refused
from conformance.fixtures.overlapping import Overlap, Pair, group_of, iteration, optimizer_of, pair_of
from conformance.fixtures.training import ddp, parameters, private
from conformance.ranks import caught
from conformance.subjects import Unsupported

DEADLINE_S = 8.0
EACH_MIB, ONE_MIB = 1e-6, 25  # a bucket for each parameter; one for all
HOOKS = {"sequential": False, "interleaved": True}
AT_ONCE = {"warm_up_iterations": 0}


def wrapped(ctx, module, zero, group, interleaved, cap, hook=None, warm_up=0, **options):
    """One more DDP around a module, whose hook steps the optimizer."""
    model = ddp(ctx, module, process_group=group, bucket_cap_mb=cap, **options)
    made = overlapping.hook_of(ctx, model, zero, interleaved, hook, warm_up_iterations=warm_up)
    model.register_comm_hook(group, made)
    return Pair(model, zero, group, dist.get_rank(group))


# -- HOOK-018: a penalty that goes backward by itself, before the loss


def step_behind_a_penalty(ctx, interleaved):
    """What the backward of a loss raises, behind that of a penalty on all weights; and one of their sum."""
    pair = pair_of(ctx, Overlap(interleaved=interleaved, keywords=AT_ONCE))
    iteration(pair, 0)

    def penalty():
        return sum((weight**2).sum() for weight in pair.model.parameters())

    pair.ddp.zero_grad(set_to_none=True)
    loss = overlapping.loss(pair.ddp(pair.batch(1)))
    penalty().backward()
    error = caught(loss.backward)
    pair.ddp.zero_grad(set_to_none=True)
    return error, caught((overlapping.loss(pair.ddp(pair.batch(2))) + penalty()).backward), parameters(pair.model)


@check("HOOK-018", worlds=MANY, beyond=False, scenarios=HOOKS, deadline_s=DEADLINE_S)
def test_an_iteration_is_not_stepped_twice_behind_a_penalty_without_a_word(ranks, scenario):
    told = ranks(step_behind_a_penalty, scenario)
    for rank, (error, summed, held) in enumerate(told):
        if error is None:
            ranks.at_limit("an iteration with two backwards makes two steps")
        else:
            assert_refused([error], RuntimeError, "penalty")
        assert summed is None, f"rank {rank}: {summed}"
        assert held == told[0][2], f"rank {rank} has other parameters"


# -- HOOK-010, HOOK-018: a warm-up, two wrappers around one model, and a state that is put away

WARM_UP = 2
# to the third wrapper everybody owns what he has with the second; the fourth names other owners and moves no parameter
TURNS = (0, 0, 0, 0, 1, 1, 0, 1, 2, 0, 0, 2, 3, 2)
CLEARED = (4, 9)  # before these iterations the program drops the optimizer's state; at the first one owners move


def take_turns(ctx, interleaved):
    """What each iteration leaves; the wrappers share the model and the optimizer, and the first warms up."""
    group, module = group_of(ctx), models.SumBackwards().to(ctx.device)
    zero = optimizer_of(ctx, module.parameters(), "momentum", group)
    pairs = [
        wrapped(ctx, module, zero, group, interleaved, cap, warm_up=warm_up)
        for cap, warm_up in ((EACH_MIB, WARM_UP), (ONE_MIB, 0), (ONE_MIB, 0))
    ]
    pairs.append(wrapped(ctx, module, zero, group, interleaved, EACH_MIB, find_unused_parameters=True))
    seen = []
    for number, turn in enumerate(TURNS):
        if number in CLEARED:
            zero.state = collections.defaultdict(dict)
        seen.append(iteration(pairs[turn], number))
    return seen


@check("HOOK-010", "HOOK-018", worlds=(1, 2, 3), scenarios=HOOKS, deadline_s=DEADLINE_S, beyond=False)
def test_two_wrappers_take_turns_after_a_warm_up_and_a_state_is_put_away(ranks, scenario):
    alone = overlapping.Alone(Overlap(model=models.SumBackwards), ranks.world)
    for number, seen in enumerate(zip(*ranks(take_turns, scenario), strict=True)):
        if number in CLEARED:
            alone.optimizer.state = collections.defaultdict(dict)
        alone.follow(seen)
    assert alone.updates == [number >= WARM_UP for number in range(len(TURNS))]


# -- HOOK-047: a warm-up and clipped gradients on uneven inputs

UNEVENLY = [
    Overlap(shard=True, keywords={"warm_up_iterations": WARM_UP, "max_norm": 3.0}),
    Overlap(shard=True, keywords={"warm_up_iterations": WARM_UP, "max_norm": 3.0, "reduce_scatter": True}),
    Overlap(True, keywords={"warm_up_iterations": WARM_UP, "reduce_scatter": True}),
]


def train_unevenly(ctx, schedule, ways):
    """For each way the parameters after this rank's iterations in a context, and after it."""
    group, told = group_of(ctx), []
    for how in ways:
        pair, seen = pair_of(ctx, how, group), []
        with ctx.subject.Join([pair.ddp, pair.zero]):
            seen += [iteration(pair, number).parameters for number in range(schedule[ctx.rank])]
        told.append([*seen, parameters(pair.model)])
    return told


def unevenly_alone(how, schedule):
    alone, found = overlapping.Alone(how, len(schedule)), []
    for number in range(max(schedule)):
        active = oracle.active_ranks(schedule, number)
        overlapping.give(alone.model, overlapping.averaged(alone.model, number, active, len(schedule)))
        nn.utils.clip_grad_norm_(alone.model.parameters(), how.keywords.get("max_norm", float("inf")))
        if number >= WARM_UP:
            alone.optimizer.step()
        found.append(parameters(alone.model))
    return found


@check("HOOK-047", worlds=MANY, deadline_s=DEADLINE_S)
def test_a_warm_up_and_clipped_gradients_on_uneven_inputs_are_those_of_one_process(ranks):
    schedules = (tuple(1 + 2 * rank for rank in range(ranks.world)), (4, *[0] * (ranks.world - 1)))
    for schedule, results in ranks.each(train_unevenly, schedules, UNEVENLY):
        expected = [unevenly_alone(how, schedule) for how in UNEVENLY]
        for rank, told in enumerate(results):
            for how, mine, right in zip(UNEVENLY, told, expected, strict=True):
                moments = [*right[: schedule[rank]], right[-1]]
                for number, (held, due) in enumerate(zip(mine, moments, strict=True)):
                    assert held == {name: pytest.approx(values, rel=1e-5, abs=1e-5) for name, values in due.items()}, (
                        f"rank {rank}, schedule {schedule}, moment {number}, {how}"
                    )


# -- HOOK-018, ZERO-031: a scheduler from the very beginning

STEPS = 6
CYCLED = Overlap(optimizer="sgd", model=models.SumBackwards)  # its owners are others from the second iteration on


def cycle(optimizer):
    """Moves the rate and the momentum, of which nobody has said anything."""
    return torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.5, total_steps=STEPS + 1)


def train_with_a_cycle(ctx, interleaved):
    """What each iteration leaves, and what is warned of when the scheduler goes on."""
    pair = pair_of(ctx, replace(CYCLED, interleaved=interleaved, keywords=AT_ONCE))
    scheduler, seen = cycle(pair.zero), []
    with overlapping.heard() as notes:
        for number in range(STEPS):
            seen.append(iteration(pair, number))
            scheduler.step()
    return seen, [note for note in notes if "step()" in note]


@check("ZERO-031", worlds=MANY, scenarios=HOOKS, deadline_s=DEADLINE_S)
def test_a_scheduler_may_be_there_before_the_first_backward(ranks, scenario):
    runs, notes = zip(*ranks(train_with_a_cycle, scenario), strict=True)
    assert notes == ([],) * ranks.world
    alone = overlapping.Alone(CYCLED, ranks.world)
    scheduler = cycle(alone.optimizer)
    for seen in zip(*runs, strict=True):
        alone.follow(seen, tolerance=1e-6)
        scheduler.step()


# -- HOOK-018: complex parameters, answers in another dtype


WAYS = [
    Overlap(interleaved, model=model, hook=hook, keywords=keywords)
    for interleaved, (model, hook, keywords) in itertools.product(
        (False, True),
        (
            (models.Complex, None, AT_ONCE), (models.Complex, None, {"reduce_scatter": True}),
            (models.Sum, overlapping.in_doubles, AT_ONCE), (models.Complex, overlapping.in_doubles, AT_ONCE),
        ),
    )
]  # fmt: skip


def train_each(ctx, ways):
    group = group_of(ctx)
    return [overlapping.iterations(pair_of(ctx, how, group)) for how in ways]


@check("HOOK-018", worlds=(1, 2, 3), deadline_s=DEADLINE_S, beyond=False)
def test_complex_parameters_and_answers_in_another_dtype_are_stepped_as_by_one_process(ranks):
    for how, *runs in zip(WAYS, *ranks(train_each, WAYS), strict=True):
        alone = overlapping.Alone(how, ranks.world)
        for number, seen in enumerate(zip(*runs, strict=True)):
            alone.step(overlapping.averaged(alone.model, number, range(ranks.world), ranks.world))
            for rank, mine in enumerate(seen):
                assert mine.parameters == parameters(alone.model), f"rank {rank}, iteration {number}, {how}"


# -- HOOK-037: backwards that fail


class Columns(nn.Module):
    """Layers side by side, laid out column by column; the backward of the first fails when it is asked to."""

    def __init__(self, names="abc"):
        super().__init__()
        self.parts = nn.ModuleDict({name: nn.Linear(4, 4, bias=False) for name in names})
        for index, part in enumerate(self.parts.values()):
            part.weight.data = torch.full((4, 4), float(index)).add_(torch.arange(4.0)).t()
        self.use, self.fails = names, False

    def forward(self, x):
        outputs = {name: part(x) for name, part in self.parts.items() if name in self.use}
        if self.fails:
            outputs["a"].register_hook(fail)
        return torch.stack([(index + 1) * output for index, output in enumerate(outputs.values())]).sum(dim=0)


def fail(_gradient):
    raise KeyError("the backward of one iteration fails on every rank")


def fail_half_way(ctx, interleaved, apart=False):
    """Whether a backward failed; the parameters when the next forward ends, and after that iteration."""
    if apart:
        far_apart(ctx)
    pair = pair_of(ctx, Overlap(interleaved, model=Columns, ddp={"bucket_cap_mb": EACH_MIB}, keywords=AT_ONCE))
    overlapping.iterations(pair, 3)
    pair.model.fails = True
    error = caught(iteration, pair, 3)
    pair.model.fails = False
    output = pair.ddp(pair.batch(4))
    held = parameters(pair.model)
    overlapping.loss(output).backward()
    return error is not None, held, parameters(pair.model)


def worlds_of(apart):
    """Two hosts send as one does."""
    return MANY[1:] if apart else MANY


@check("HOOK-037", worlds=MANY, deadline_s=DEADLINE_S, scenarios=HOSTS, at=worlds_of)
def test_what_a_failed_backward_has_sent_has_arrived_when_the_next_forward_begins(ranks, scenario):
    for name, interleaved in HOOKS.items():
        results = ranks(fail_half_way, interleaved, scenario)
        for rank, (failed, *held) in enumerate(results):
            assert failed
            assert held == [*results[0][1:]], f"rank {rank} goes on from other parameters than rank 0, {name}"


LEFT_OUT = 3  # from this iteration on nobody uses the second part


def fail_beside_an_old_gradient(ctx, interleaved, to_none):
    """A backward fails when it has set aside an old gradient, which the program then clears; what each one leaves."""
    options = {"bucket_cap_mb": EACH_MIB, "find_unused_parameters": True, "gradient_as_bucket_view": True}
    pair, found = pair_of(ctx, Overlap(interleaved, model=Columns, ddp=options, keywords=AT_ONCE)), []
    zero, rate = pair.zero, pair.zero.param_groups[0]["lr"]
    for number in range(LEFT_OUT + 3):
        if number == LEFT_OUT:
            pair.model.use = "ac"
            kept = {parameter: copy.deepcopy(state) for parameter, state in zero.state.items()}
            zero.param_groups[0]["lr"], pair.model.fails = 0.0, True
            found.append(caught(backward, pair, number) is not None)
            zero.param_groups[0]["lr"], pair.model.fails = rate, False
            zero.state.update(kept)
        pair.ddp.zero_grad(set_to_none=to_none)
        backward(pair, number)
        found.append(parameters(pair.model))
    return found


def backward(pair, number):
    overlapping.loss(pair.ddp(pair.batch(number))).backward()


def left_out_alone(world, to_none):
    alone = overlapping.Alone(Overlap(model=Columns), world)
    for number in range(LEFT_OUT + 3):
        alone.optimizer.zero_grad(set_to_none=to_none)
        if number == LEFT_OUT:
            alone.model.use = "ac"
            yield True
        for rank in range(world):
            (overlapping.loss(alone.model(overlapping.batch(rank, number))) / world).backward()
        alone.optimizer.step()
        yield parameters(alone.model)


@check("HOOK-037", worlds=(1, 2), deadline_s=DEADLINE_S, beyond=False)
def test_what_a_failed_backward_has_set_aside_is_not_stepped_with_later(ranks):
    for (name, interleaved), to_none in itertools.product(HOOKS.items(), (False, True)):
        expected = [list(left_out_alone(ranks.world, to_none))] * ranks.world
        assert ranks(fail_beside_an_old_gradient, interleaved, to_none) == expected, f"{name}, set_to_none={to_none}"


# -- ZERO-032, HOOK-047: checkpoints in and after a context of the model alone


def consolidate_in_a_context_of_the_model(ctx, schedule):
    """Refusals in two blocks, which the program keeps; then the state is saved, loaded and gone on with."""
    pair = pair_of(ctx, Overlap(optimizer="momentum", keywords=AT_ONCE))
    blocks, refused, seen = [], [], []
    for first in (0, max(schedule)):
        blocks.append(ctx.subject.Join([pair.ddp]))
        with blocks[-1]:
            for number in range(schedule[ctx.rank]):
                seen.append(iteration(pair, first + number))
                if number:
                    refused += [caught(pair.zero.consolidate_state_dict), caught(pair.zero.load_state_dict, {})]
    pair.zero.consolidate_state_dict(ctx.world - 1)
    saved = [pair.zero.state_dict() if ctx.rank == ctx.world - 1 else None]
    dist.broadcast_object_list(saved, src=ctx.world - 1)
    iteration(pair, 2 * max(schedule))
    for parameter in pair.model.parameters():
        parameter.data.zero_()
    pair.zero.load_state_dict(saved[0])
    seen.append(iteration(pair, 2 * max(schedule) + 1))
    return refused, [each.parameters for each in seen]


def saved_alone(schedule):
    """Parameters by iteration of each block, and after the iteration that follows on the loaded state."""
    alone = overlapping.Alone(Overlap(optimizer="momentum"), len(schedule))

    def step(number, active):
        alone.step(overlapping.averaged(alone.model, number, active, len(schedule)))
        return parameters(alone.model)

    numbers = range(max(schedule))
    found = [
        [step(first + number, oracle.active_ranks(schedule, number)) for number in numbers]
        for first in (0, max(schedule))
    ]
    for parameter in alone.model.parameters():
        parameter.data.zero_()
    return found, step(2 * max(schedule) + 1, range(len(schedule)))


@check("ZERO-032", "HOOK-047", worlds=MANY, deadline_s=DEADLINE_S)
def test_in_a_context_of_the_model_alone_a_checkpoint_is_refused_and_behind_it_made(ranks):
    schedule = tuple(1 + 2 * rank for rank in range(ranks.world))
    within, behind = saved_alone(schedule)
    for rank, (refused, seen) in enumerate(ranks(consolidate_in_a_context_of_the_model, schedule)):
        assert_refused(refused, RuntimeError, "context")
        assert seen == [*(each for block in within for each in block[: schedule[rank]]), behind], f"rank {rank}"


# -- HOOK-045: states that nobody has any more

BEFORE, AFTER = 3, 2  # iterations


class Begun(torch.optim.SGD):
    """Has a state for each parameter from its construction on, and counts on that."""

    def __init__(self, params, lr=0.25):
        super().__init__(params, lr=lr)
        for parameter in self.everything():
            self.state[parameter]["sum"] = torch.ones_like(parameter)

    def everything(self):
        return [parameter for group in self.param_groups for parameter in group["params"]]

    @torch.no_grad()
    def step(self, closure=None):
        for parameter in self.everything():
            parameter.sub_(self.state[parameter]["sum"].add_(parameter.grad), alpha=self.param_groups[0]["lr"])


def lose_states(ctx, interleaved):
    """Whose states this rank had, and what each iteration leaves; the first rank is not in the second group."""
    group, rest = group_of(ctx), list(range(1, ctx.world))
    other, module = group_of(ctx, rest), models.Sum().to(ctx.device)
    options = {"process_group": group, "overlap_with_ddp": True}
    try:
        zero = ctx.subject.ZeroRedundancyOptimizer(module.parameters(), Begun, **options)
    except ValueError as error:
        raise Unsupported(f"{ctx.subject.name} overlaps with optimizers of its own choice only: {error}") from error
    model = ddp(ctx, module, process_group=group, bucket_cap_mb=overlapping.CAP_MIB)
    model.register_comm_hook(None, overlapping.hook_of(ctx, model, zero, interleaved, **AT_ONCE))
    pair = Pair(model, zero, group, ctx.rank)
    seen = overlapping.iterations(pair, BEFORE)
    owned = overlapping.stateful(pair)
    if ctx.rank in rest:
        private(model, "_update_process_group")(other)
        seen += [iteration(pair, BEFORE + number) for number in range(AFTER)]
    return owned, [each.parameters for each in seen]


def lost_alone(world, lost):
    """One process: what nobody has any more begins as the optimizer's constructor makes it."""
    model, found = models.Sum(), []
    optimizer = Begun(model.parameters())
    for number in range(BEFORE + AFTER):
        active = range(world) if number < BEFORE else range(1, world)
        if number == BEFORE:
            fresh = Begun(model.parameters()).state
            optimizer.state.update({p: fresh[p] for name, p in model.named_parameters() if name in lost})
        overlapping.give(model, overlapping.averaged(model, number, active, len(active)))
        optimizer.step()
        found.append(parameters(model))
    return found


@check("HOOK-045", worlds=(2, 3), scenarios=HOOKS, deadline_s=DEADLINE_S, beyond=False)
def test_states_that_only_ranks_outside_the_new_group_had_begin_anew(ranks, scenario):
    results = ranks(lose_states, scenario)
    expected = lost_alone(ranks.world, results[0][0])
    for rank, (_, seen) in enumerate(results):
        assert seen == expected[: len(seen)], f"rank {rank}"
