"""The sharded step: who owns what, and that every step leaves what the ordinary optimizer leaves, on every rank."""

import collections
import copy
import random

import torch
import torch.distributed as dist
from torch import nn

from conformance.api.checking import MANY, check
from conformance.fixtures import models
from conformance.fixtures.joinables import upper_ranks
from conformance.fixtures.sharding import (
    OPTIMIZERS,
    Drift,
    Looking,
    Reference,
    Twice,
    first_gap,
    give,
    in_two_groups,
    one_by_one,
    owners,
    sharded,
    some_parameters,
    step_by_sums,
)
from conformance.fixtures.training import private
from conformance.subjects import Unsupported

GROUPED = {"one group": list, "two groups": in_two_groups}


def sizes_to_own(world):
    """Lists of parameter sizes, among them such that only the promised rule spreads well."""
    generator = random.Random(world)
    drawn = [[generator.randrange(1, 40) for _ in range(count)] for count in (2, 5, 9, 13)]
    return [[16] * world, [1, 2, 3, 4, 5, 6, 7, 8, 9], [4, 1, 1, 1, 9, 4], [1], *drawn]


def who_owns(ctx, every):
    found = []
    for sizes in every:
        parameters = [nn.Parameter(torch.zeros(size, device=ctx.device)) for size in sizes]
        zero = sharded(ctx, parameters, lr=0.5)
        found.append(owners(zero, parameters, 0.5, ctx.rank))
    return found


def greedy_loads(sizes, world):
    """Elements per rank, ascending, if the largest parameter goes first and each to a least loaded rank."""
    loads = [0] * world
    for size in sorted(sizes, reverse=True):
        loads[loads.index(min(loads))] += size
    return sorted(loads)


@check("ZERO-007")
def test_every_parameter_has_one_owner_chosen_greedily_by_size_and_known_to_all(ranks):
    every = sizes_to_own(ranks.world)
    results = ranks(who_owns, every)
    for found in results:
        assert found == results[0], "the ranks disagree"
    for sizes, owned in zip(every, results[0], strict=True):
        assert set(owned) <= set(range(ranks.world)), f"sizes {sizes}: owners {owned}"
        loads = [sum(size for size, owner in zip(sizes, owned, strict=True) if owner == r) for r in range(ranks.world)]
        assert sorted(loads) == greedy_loads(sizes, ranks.world), f"sizes {sizes}: owners {owned}"


def own_what_is_interleaved(ctx):
    """Of two parameters in one piece of memory that share no element those that this rank steps."""
    memory = torch.arange(12.0, device=ctx.device)
    parameters = [nn.Parameter(memory[place::2]) for place in range(2)]
    own = private(sharded(ctx, parameters), "optim").param_groups
    return [place_of(parameters, one) for group in own for one in group["params"]]


@check("ZERO-007", worlds=MANY)
def test_parameters_that_lie_between_each_other_and_share_nothing_have_owners_of_their_own(ranks):
    found = ranks(own_what_is_interleaved)
    assert sorted(map(len, found)) == [0] * (ranks.world - 2) + [1, 1], f"each rank's own: {found}"


def train(ctx, name, grouped=list, group=None, iterations=5, count=5, sparsely=False, dtype=torch.float32, **options):
    """Where a sharded optimizer differs from its reference, by iteration."""
    parameters = [nn.Parameter(parameter.detach().to(dtype)) for parameter in some_parameters(ctx, count)]
    reference = Reference(parameters, name, grouped)
    zero = sharded(ctx, grouped(parameters), name, process_group=group, **options)
    gaps = {}
    for iteration in range(iterations):
        give(parameters, iteration, sparsely)
        give(reference.parameters, iteration, sparsely)
        zero.step()
        reference.optimizer.step()
        gaps[iteration] = reference.gap(parameters)
    return {iteration: gap for iteration, gap in gaps.items() if gap}


def train_each(ctx):
    found = {}
    for name in OPTIMIZERS:
        for arrangement, grouped in GROUPED.items():
            for sparsely in (False, True):
                gaps = train(ctx, name, grouped, sparsely=sparsely)
                found[f"{name}, {arrangement}, some gradients absent: {sparsely}"] = gaps
    return {what: gaps for what, gaps in found.items() if gaps}


@check("ZERO-008")
def test_after_each_step_all_ranks_hold_what_the_ordinary_optimizer_leaves(ranks):
    assert ranks(train_each) == [{}] * ranks.world


def train_in_subgroup(ctx, members):
    group = dist.new_group(members)
    if ctx.rank not in members:
        return None
    names = ("Adam", "SGD with momentum and decay")
    return [train(ctx, name, group=group, dtype=dtype) for name in names for dtype in (torch.float32, torch.complex64)]


def step_in_low_precision(ctx, jobs, cast=False):
    """What differs from the ordinary optimizer after a few steps in which much is rounded, by optimizer and dtype.

    ``cast``: half-way parameters are cast to single precision, and states are not.
    """
    gaps = []
    for name, dtype in jobs:
        parameters = [nn.Parameter((parameter.detach() / 3).to(dtype)) for parameter in some_parameters(ctx)]
        options = one_by_one(ctx) if cast else {}
        reference = Reference(parameters, name, **options)
        zero = sharded(ctx, parameters, name, **options)
        for iteration in range(4):
            for targets, optimizer in ((parameters, zero), (reference.parameters, reference.optimizer)):
                for place, target in enumerate(targets):
                    if cast and iteration == 2:
                        target.data = target.data.float()
                    values = models.integers(*target.shape, seed=300 + 50 * iteration + place) / 7
                    target.grad = values.to(ctx.device, target.dtype)
                optimizer.step()
        gaps.append(reference.gap(parameters))
    return gaps


@check("ZERO-008", worlds=MANY)
def test_in_low_precision_steps_round_as_those_of_the_ordinary_optimizer_do(ranks):
    jobs = [(name, torch.bfloat16) for name in OPTIMIZERS]
    assert ranks(step_in_low_precision, jobs) == [[None] * len(jobs)] * ranks.world


@check("ZERO-008", worlds=MANY)
def test_parameters_that_are_cast_go_on_with_the_states_that_they_have(ranks):
    jobs = [("SGD with momentum and decay", dtype) for dtype in (torch.float16, torch.bfloat16)]
    jobs.append(("Adagrad", torch.float64))
    assert ranks(step_in_low_precision, jobs, True) == [[None] * 3] * ranks.world


@check("ZERO-008", "ZERO-001", worlds=(3, 4))
def test_ranks_of_a_subgroup_share_among_themselves(ranks):
    results = ranks(train_in_subgroup, upper_ranks(ranks.world))
    assert results == [None] + [[{}] * 4] * (ranks.world - 1)


def train_few(ctx, count):
    return {name: gaps for name in OPTIMIZERS if (gaps := train(ctx, name, count=count, iterations=3))}


@check("ZERO-030", worlds=MANY)
def test_ranks_that_own_nothing_take_part(ranks):
    for count, told in ranks.each(train_few, (1, max(ranks.world - 1, 1))):
        assert told == [{}] * ranks.world, f"{count} parameters"


def keep_states(ctx):
    """What the user's optimizer keeps on this rank: entries and elements; and what this rank owns."""
    parameters = some_parameters(ctx)
    Drift.made.clear()
    zero = sharded(ctx, parameters, "a user's own")
    for iteration in range(3):
        give(parameters, iteration)
        zero.step()
    local = [found for made in Drift.made if (found := made()) is not None]
    kept = [state["total"] for optimizer in local for state in optimizer.state.values() if "total" in state]
    plain = sharded(ctx, parameters, lr=0.5)
    owned = [owner == ctx.rank for owner in owners(plain, parameters, 0.5, ctx.rank)]
    mine = [parameter for parameter, own in zip(parameters, owned, strict=True) if own]
    return len(kept), sum(total.numel() for total in kept), len(mine), sum(parameter.numel() for parameter in mine)


@check("ZERO-009")
def test_each_rank_keeps_state_for_the_parameters_that_it_owns_and_no_others(ranks):
    results = ranks(keep_states)
    for entries, elements, owned, owned_elements in results:
        assert (entries, elements) == (owned, owned_elements)
    assert sum(entries for entries, *_ in results) == 5
    assert max(elements for _, elements, *_ in results) < 42 or ranks.world == 1, "one rank keeps everything"


def step_with_closure(ctx):
    parameters = some_parameters(ctx)
    reference = Reference(parameters, "a user's own")
    zero = sharded(ctx, parameters, "a user's own")
    told = []
    for keywords in STEPS:
        seen = []
        for optimizer, targets in ((zero, parameters), (reference.optimizer, reference.parameters)):
            calls = []

            def closure(targets=targets, calls=calls):
                calls.append(torch.is_grad_enabled())
                give(targets, 1)
                return 3.0

            given = {**keywords, "closure": closure} if "closure" in keywords else keywords
            seen.append((optimizer.step(**given), calls))
        told.append((*seen, reference.gap(parameters)))
    plain = sharded(ctx, parameters, "Adam")
    loss = plain.step(lambda: torch.tensor(3.0))
    return told, [loss.item() if isinstance(loss, torch.Tensor) else loss, plain.step()]


STEPS = ({"closure": True}, {"closure": True, "scale": 0.5}, {"scale": 2.0}, {})


@check("ZERO-010")
def test_a_step_passes_on_closure_and_keywords_and_returns_what_the_local_optimizer_returns(ranks):
    for rank, (told, builtin) in enumerate(ranks(step_with_closure)):
        for keywords, ((returned, calls), (right, once), gap) in zip(STEPS, told, strict=True):
            about = f"rank {rank}, step({', '.join(keywords)})"
            assert right == ("stepped", 3.0 if "closure" in keywords else None, keywords.get("scale", 1.0))
            assert returned == right, f"{about} returned {returned}, the local optimizer returns {right}"
            assert len(calls) == len(once), f"{about} evaluated the closure {len(calls)} times, not {len(once)}"
            assert calls == once, f"{about} evaluated the closure without gradients"
            assert gap is None, f"{about}: {gap}"
        assert builtin == [3.0, None], f"rank {rank}: steps with a closure and without one returned {builtin}"


def step_twice_by_closure(ctx, kind, late=0):
    """Every gradient depends on all parameters, of which some are thawed by the closure, and the last ``late`` ones
    given to the optimizer there; the gap after two steps."""
    parameters = some_parameters(ctx)
    for place in (1, 2, 3):
        parameters[place].requires_grad_(False)
    alone = copy.deepcopy(parameters)
    first = len(parameters) - late
    optimizers = ctx.subject.ZeroRedundancyOptimizer(parameters[:first], kind, lr=0.25), kind(alone[:first], lr=0.25)
    for _ in range(2):
        for optimizer, targets in zip(optimizers, (parameters, alone), strict=True):
            step_by_sums(optimizer, targets)
    return first_gap(parameters, alone)


@check("ZERO-008")
def test_a_closure_that_is_called_again_sees_what_all_ranks_have_stepped(ranks):
    for late in (0, 2):
        for rank, gap in enumerate(ranks(step_twice_by_closure, Twice, late)):
            assert gap is None, f"rank {rank}: {gap}, where the closure gives {late} of them"


@check("ZERO-008")
def test_a_closure_that_is_called_again_or_after_a_move_sees_what_all_ranks_have_moved(ranks):
    for rank, gap in enumerate(ranks(step_twice_by_closure, Looking)):
        assert gap is None, f"rank {rank}: {gap}"


def forget_momentum(ctx):
    """Momentum that begins anew after two steps, as one does with an ordinary optimizer."""
    parameters = some_parameters(ctx)
    reference = Reference(parameters, "SGD", momentum=0.5)
    zero = sharded(ctx, parameters, "SGD", momentum=0.5)
    for iteration in range(4):
        for optimizer, targets in ((zero, parameters), (reference.optimizer, reference.parameters)):
            if iteration == 2:
                optimizer.state = collections.defaultdict(dict)
                if optimizer is zero:
                    zero.consolidate_state_dict()
                    left = zero.state_dict()["state"] if ctx.rank == 0 else {}
            give(targets, iteration)
            optimizer.step()
    return reference.gap(parameters) or (f"saved all the same: {left}" if left else None)


@check("ZERO-008", worlds=MANY)
def test_a_state_that_the_program_replaces_is_replaced(ranks):
    for rank, gap in enumerate(ranks(forget_momentum)):
        assert gap is None, f"rank {rank}: {gap}"


def schedule(ctx, name, grouped):
    parameters = some_parameters(ctx)
    reference = Reference(parameters, name, grouped)
    zero = sharded(ctx, grouped(parameters), name)
    schedulers = [torch.optim.lr_scheduler.StepLR(one, 1, gamma=0.5) for one in (zero, reference.optimizer)]
    gaps, shown = [], []
    for iteration in range(4):
        if iteration == 2:
            for optimizer in (zero, reference.optimizer):
                optimizer.param_groups[-1]["lr"] = 0.75
                optimizer.param_groups[0]["weight_decay"] = 0.5
        for optimizer, targets, scheduler in zip(
            (zero, reference.optimizer), (parameters, reference.parameters), schedulers, strict=True
        ):
            give(targets, iteration)
            optimizer.step()
            scheduler.step()
        gaps.append(reference.gap(parameters))
        rates = [[group["lr"] for group in each.param_groups] for each in (zero, reference.optimizer)]
        shown.append(rates[0] == rates[1])
    return gaps, shown


def schedule_each(ctx):
    names = ("SGD with momentum and decay", "Adam")
    return [schedule(ctx, name, grouped) for name in names for grouped in GROUPED.values()]


@check("ZERO-011")
def test_changed_learning_rates_and_other_settings_hold_from_the_next_step(ranks):
    for rank, results in enumerate(ranks(schedule_each)):
        for gaps, shown in results:
            assert gaps == [None] * 4, f"rank {rank}"
            assert shown == [True] * 4, f"rank {rank}"


CYCLES = {  # by scheduler and optimizer; each moves the momentum, whose settings nobody has given
    "one cycle": (lambda one: torch.optim.lr_scheduler.OneCycleLR(one, 0.5, total_steps=6), "Adam"),
    "one cycle of momentum": (lambda one: torch.optim.lr_scheduler.OneCycleLR(one, 0.5, total_steps=6), "SGD"),
    "cycles": (lambda one: torch.optim.lr_scheduler.CyclicLR(one, 0.125, 0.5, 2), "AdamW"),
}


def cycle(ctx, name):
    """The gaps of a training whose momentum goes up and down; and whether its settings are shown."""
    schedule, kind = CYCLES[name]
    parameters = some_parameters(ctx)
    reference, zero = Reference(parameters, kind), sharded(ctx, parameters, kind)
    told = []
    schedulers = [schedule(one) for one in (zero, reference.optimizer)]
    for iteration in range(4):
        for optimizer, targets, scheduler in zip(
            (zero, reference.optimizer), (parameters, reference.parameters), schedulers, strict=True
        ):
            give(targets, iteration)
            optimizer.step()
            scheduler.step()
        shown = [
            [{**group, "params": None} for group in each.param_groups] for each in (zero, reference.optimizer)
        ]
        told.append((reference.gap(parameters), shown[0] == shown[1]))
    return told


def cycle_each(ctx):
    return [cycle(ctx, name) for name in CYCLES]


@check("ZERO-011", worlds=MANY)
def test_schedulers_that_ask_for_settings_which_nobody_gave_train_as_with_the_ordinary_optimizer(ranks):
    assert ranks(cycle_each) == [[[(None, True)] * 4] * len(CYCLES)] * ranks.world


def fade(ctx, count, grouped):
    parameters = some_parameters(ctx, count)
    reference = Reference(parameters, "a user's own", grouped, fade=0.5)
    zero = sharded(ctx, grouped(parameters), "a user's own", fade=0.5)
    told = []
    for iteration in range(3):
        give(parameters, iteration)
        give(reference.parameters, iteration)
        zero.step()
        reference.optimizer.step()
        told.append((reference.gap(parameters), [(group["lr"], group["count"]) for group in zero.param_groups]))
    return told


@check("ZERO-011")
def test_what_the_local_optimizer_changes_in_its_groups_is_shown_after_the_step(ranks):
    shown = [[(0.0625 * 0.5**step, step), (0.03125 * 0.5**step, step)] for step in (1, 2, 3)]
    assert ranks(fade, 5, in_two_groups) == [[(None, groups) for groups in shown]] * ranks.world
    # on ranks that own nothing, too
    assert ranks(fade, 1, list) == [[(None, groups[:1]) for groups in shown]] * ranks.world


# -- ZERO-007: what each rank is given, and sends


def send_one_after_the_other(ctx):
    """Every rank fills all parameters with a number of its own, then the ranks send theirs in turn: what is held."""
    parameters = some_parameters(ctx)
    zero = sharded(ctx, parameters)
    partition = private(zero, "_partition_parameters")
    if not callable(partition):
        raise Unsupported("what is called _partition_parameters is no method here")
    parts = partition()
    places = [[place_of(parameters, one) for group in groups for one in group["params"]] for groups in parts]
    own = sorted(place_of(parameters, one) for group in private(zero, "optim").param_groups for one in group["params"])
    with torch.no_grad():
        for parameter in parameters:
            parameter.fill_(1 + ctx.rank)
    held = []
    for sender in range(ctx.world):
        for work in private(zero, "_broadcast_params_from_rank")(sender) or ():  # what is under way, if anything
            work.wait()
        held.append([set(parameter.flatten().tolist()) for parameter in parameters])
    return places, own, held


def place_of(parameters, one):
    return next(place for place, parameter in enumerate(parameters) if parameter is one)


@check("ZERO-007", worlds=MANY)
def test_each_rank_is_given_its_own_part_and_sends_that_and_nothing_else(ranks):
    results = ranks(send_one_after_the_other)
    parts = results[0][0]
    owner = {place: rank for rank, places in enumerate(parts) for place in places}
    for rank, (places, own, held) in enumerate(results):
        assert places == parts, "the ranks disagree"
        assert own == sorted(parts[rank]), f"rank {rank} steps what is not its part"
        for sender, values in enumerate(held):
            expected = [{1.0 + (owner[place] if owner[place] <= sender else rank)} for place in range(len(owner))]
            assert values == expected, f"rank {rank}, after rank {sender} has sent"


def step_in_parts(ctx):
    """Steps whose two halves are called one after the other, as who sends parameters later does: the gaps, and between
    the halves the numbers of parameters that have changed."""
    parameters = some_parameters(ctx)
    reference = Reference(parameters, "Adam")
    zero = sharded(ctx, parameters, "Adam")
    step_own, send = private(zero, "_local_step"), private(zero, "_sync_params")
    listed = [id(parameter) for parameter in private(zero, "_all_params")]
    told = []
    for iteration in range(3):
        give(parameters, iteration)
        give(reference.parameters, iteration)
        before = [parameter.detach().clone() for parameter in parameters]
        step_own()
        changed = sum(not torch.equal(old, new) for old, new in zip(before, parameters, strict=True))
        send()
        reference.optimizer.step()
        told.append((changed, reference.gap(parameters)))
    return told, listed == [id(parameter) for parameter in parameters]


@check("ZERO-008", worlds=(1, 2, 3), beyond=False)
def test_a_step_may_be_made_and_its_results_sent_later(ranks):
    results = ranks(step_in_parts)
    for rank, (told, listed) in enumerate(results):
        assert [gap for _, gap in told] == [None] * 3, f"rank {rank}: {told}"
        assert listed, f"rank {rank}: not all parameters are listed, or in another order"
    for iteration, shares in enumerate(zip(*(told for told, _ in results), strict=True)):
        assert sum(changed for changed, _ in shares) == 5, f"iteration {iteration}: so many changed by rank: {shares}"
