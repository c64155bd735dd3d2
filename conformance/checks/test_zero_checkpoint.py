"""Saving and loading the sharded state: consolidation, the format of an ordinary optimizer, everybody's own part."""

import copy
import itertools
import time

import torch
import torch.distributed as dist
from torch import nn

from conformance.api.checking import MANY, check
from conformance.fixtures.joinables import upper_ranks
from conformance.fixtures.observing import assert_refused, logged
from conformance.fixtures.sharding import (
    FUNCTIONAL,
    OPTIMIZERS,
    WARM_UP,
    Drift,
    Overlapped,
    Reference,
    Skipping,
    SkippingInTensors,
    Slowing,
    Sorting,
    first_gap,
    give,
    in_groups_of_one,
    in_two_groups,
    owners,
    sharded,
    some_parameters,
)
from conformance.fixtures.training import private
from conformance.ranks import caught

#: longer than a wait goes on between two looks for peers that have failed
LATE_S = 0.3
GROUPED = {"one group": list, "two groups": in_two_groups}


def trained(ctx, name, grouped, steps=2, group=None, count=5, **options):
    """Parameters, their sharded optimizer and the reference after some steps."""
    parameters = some_parameters(ctx, count)
    reference = Reference(parameters, name, grouped, **options)
    zero = sharded(ctx, grouped(parameters), name, process_group=group, **options)
    go_on(zero, parameters, reference, range(steps))
    return parameters, zero, reference


def go_on(zero, parameters, reference, iterations, sparsely=True):
    """Step both; the first gap. The gradients of some parameters are absent now and then."""
    gap = None
    for iteration in iterations:
        for optimizer, targets in ((zero, parameters), (reference.optimizer, reference.parameters)):
            give(targets, iteration, sparsely)
            optimizer.step()
        gap = gap or reference.gap(parameters)
    return gap


def difference(ours, theirs):
    """Where our state dictionary differs from another, tensors bit by bit, or is not sorted; None if nowhere."""
    if list(ours["state"]) != sorted(theirs["state"]):
        return f"keys {list(ours['state'])}, expected {sorted(theirs['state'])}"
    if [group["params"] for group in ours["param_groups"]] != [group["params"] for group in theirs["param_groups"]]:
        return f"groups {ours['param_groups']}, expected {theirs['param_groups']}"
    for mine, other in zip(ours["param_groups"], theirs["param_groups"], strict=True):
        wrong = [key for key, value in other.items() if mine.get(key) != value]
        if wrong:
            return f"settings {wrong}: {mine}, expected {other}"
    for index, state in theirs["state"].items():
        for key, value in state.items():
            mine = ours["state"][index].get(key)
            tensors = isinstance(mine, torch.Tensor) and isinstance(value, torch.Tensor)
            same = torch.equal(mine.cpu(), value.cpu()) if tensors else mine is value or mine == value
            if not same:
                return f"state {key} of parameter {index}: {mine}, expected {value}"
    return None


def consolidate_with_one_late(ctx):
    """Every rank in turn comes late to a consolidation to rank 0; the states that arrive there."""
    _, zero, _ = trained(ctx, "Adam", list)
    lengths = []
    for late in range(ctx.world):
        if ctx.rank == late:
            time.sleep(LATE_S)
        zero.consolidate_state_dict()
        lengths.append(len(zero.state_dict()["state"]) if ctx.rank == 0 else None)
    return lengths, len(zero.param_groups[0]["params"])


@check("ZERO-016")
def test_ranks_may_come_late_to_a_consolidation(ranks):
    (at_target, count), *_ = ranks(consolidate_with_one_late)
    assert at_target == [count] * ranks.world


def ask_unconsolidated(ctx):
    _, zero, _ = trained(ctx, "Adam", list)
    never = caught(zero.state_dict)
    zero.consolidate_state_dict()
    by_default = caught(zero.state_dict)
    zero.consolidate_state_dict(to=ctx.world - 1)
    with logged() as texts:
        by_request = [caught(zero.state_dict)] if ctx.rank == ctx.world - 1 else []
    elsewhere = [caught(zero.state_dict)]  # rank 0 held an earlier one
    give(zero.param_groups[0]["params"], 7)
    zero.step()
    elsewhere.append(caught(zero.state_dict))
    return never, by_default, by_request, texts, elsewhere


@check("ZERO-015", "ZERO-016")
def test_the_global_state_is_refused_wherever_it_has_not_been_consolidated(ranks):
    results = ranks(ask_unconsolidated)
    last = ranks.world - 1
    refused = [never for never, *_ in results] + [by_default for _, by_default, *_ in results[1:]]
    refused += [error for *_, elsewhere in results[:-1] for error in elsewhere]  # after the next step, too
    assert_refused(refused, RuntimeError)
    assert results[last][4] == [None, None]
    assert results[0][1] is None, "the default target is rank 0"
    assert results[last][2] == [None]
    assert results[last][3] == [], "a warning about a state that has just been consolidated"


def ask_for_an_old_state(ctx, overlapped):
    """What the log says of a state that was asked for once it was consolidated, and after each of two steps."""
    told = []
    if overlapped:
        training = Overlapped(ctx)
        zero, step = training.zero, training.train_many
        step(range(WARM_UP + 1))
    else:
        _, zero, _ = trained(ctx, "Adam", list)

        def step(_):
            give(zero.param_groups[0]["params"], 7)
            zero.step()

    zero.consolidate_state_dict()
    for number in range(3):
        with logged() as texts:
            if ctx.rank == 0:
                zero.state_dict()
        told.append(len(texts))
        step([WARM_UP + 1 + number])
    return told


@check("ZERO-016", worlds=(2, 3), beyond=False)
def test_a_state_of_before_the_last_step_is_told_to_be_old(ranks):
    assert ranks.subject.PeerFailed  # no document asks for it
    for overlapped in (False, True):
        first, *others = ranks(ask_for_an_old_state, overlapped)
        assert first == [0, 1, 1], f"{overlapped=}"
        assert others == [[0, 0, 0]] * len(others), f"{overlapped=}"


def load_or_add_after_consolidating(ctx):
    """What asking for the global state raises after another was loaded, and after a group was added."""
    _, zero, reference = trained(ctx, "Adam", list)
    for target in range(ctx.world):
        zero.consolidate_state_dict(to=target)
    zero.load_state_dict(copy.deepcopy(reference.optimizer.state_dict()))
    errors = [caught(zero.state_dict)]
    zero.consolidate_state_dict(to=ctx.world - 1)
    zero.add_param_group({"params": some_parameters(ctx, 2)})
    return [*errors, caught(zero.state_dict)]


@check("ZERO-015", worlds=(1, 2, 3))
def test_the_global_state_of_before_a_loading_or_an_addition_is_refused(ranks):
    for errors in zip(*ranks(load_or_add_after_consolidating), strict=True):
        assert_refused(errors, RuntimeError)


def consolidate(ctx, to):
    """On the target: where the global state differs from the ordinary one, and where training goes on differently."""
    found = {}
    for name in OPTIMIZERS:
        for arrangement, grouped in GROUPED.items():
            many = name == "Adam" and grouped is list  # so many that numbers have two digits
            parameters, zero, reference = trained(ctx, name, grouped, count=12 if many else 5)
            zero.consolidate_state_dict(to=to)
            gap = go_on_ordinarily(ctx, name, grouped, parameters, zero, reference) if ctx.rank == to else None
            later = go_on(zero, parameters, reference, [3])  # consolidating has changed nothing
            if gap or later:
                found[f"{name}, {arrangement}"] = gap or f"afterwards {later}"
    return found


def go_on_ordinarily(ctx, name, grouped, parameters, zero, reference):
    state = zero.state_dict()
    if wrong := difference(state, reference.optimizer.state_dict()):
        return wrong
    ordinary, reference = Reference(parameters, name, grouped), copy.deepcopy(reference)
    ordinary.optimizer.load_state_dict(copy.deepcopy(state))  # as from a file: tensors may be those in use
    for one in (ordinary, reference):
        give(one.parameters, 2)
        one.optimizer.step()
    return first_gap(ordinary.parameters, reference.parameters)


@check("ZERO-016")
def test_the_consolidated_state_is_that_of_the_ordinary_optimizer_in_global_order(ranks):
    for to, told in ranks.each(consolidate, {0, ranks.world - 1}):
        assert told == [{}] * ranks.world, f"consolidated to rank {to}"


def reverse(members):
    members.reverse()


def put_one_at_the_end(members):
    members.append(members.pop(1))


def append_one(members):
    members.append(nn.Parameter(torch.ones_like(members[0])))


MOVES = (reverse, put_one_at_the_end)


def change_places_behind_it(ctx):
    """By move: where a state that was consolidated before the parameters changed places differs from the ordinary."""
    told = []
    for move in (*MOVES, append_one):
        _, zero, reference = trained(ctx, "Adam", list)
        zero.consolidate_state_dict(to=ctx.world - 1)
        for optimizer in (zero, reference.optimizer):
            move(optimizer.param_groups[0]["params"])
        if ctx.rank == ctx.world - 1:
            told.append(difference(zero.state_dict(), reference.optimizer.state_dict()))
        give(zero.param_groups[0]["params"], 8)
        zero.step()
        if ctx.rank == ctx.world - 1 and caught(zero.state_dict) is None:
            held, members = zero.state_dict()["state"], zero.param_groups[0]["params"]
            told += [f"of {place}" for place in held if held[place]["exp_avg"].shape != members[place].shape]
    return told


@check("ZERO-016")
def test_a_consolidated_state_follows_parameters_that_change_their_places_afterwards(ranks):
    assert ranks(change_places_behind_it)[-1] == [None] * (len(MOVES) + 1)


def load_behind_a_change_of_places(ctx):
    """By move: parameters change places, a state is loaded before the next step; the gap after that."""
    told = []
    for move in MOVES:
        parameters, zero, reference = trained(ctx, "Adam", list)
        for optimizer in (zero, reference.optimizer):
            move(optimizer.param_groups[0]["params"])
        zero.load_state_dict(copy.deepcopy(reference.optimizer.state_dict()))
        told.append(go_on(zero, parameters, reference, [8]))
    return told


@check("ZERO-017", worlds=MANY)
def test_a_state_is_loaded_by_the_places_that_parameters_have_by_then(ranks):
    assert ranks(load_behind_a_change_of_places) == [[None] * len(MOVES)] * ranks.world


def consolidate_in_subgroup(ctx, members, to):
    group = dist.new_group(members)
    if ctx.rank not in members:
        return None
    _, zero, reference = trained(ctx, "Adam", list, group=group)
    assert private(zero, "rank") == members.index(ctx.rank), "the optimizer's rank is one of its group"
    zero.consolidate_state_dict(to=to)
    error = caught(zero.state_dict)
    return "refused" if error else difference(zero.state_dict(), reference.optimizer.state_dict())


@check("ZERO-016", "ZERO-015", worlds=(3, 4))
def test_the_target_is_a_rank_of_the_optimizers_own_group(ranks):
    for to in (0, 1):
        results = ranks(consolidate_in_subgroup, upper_ranks(ranks.world), to)
        assert results[0] is None
        assert results[1:] == [None if rank == to else "refused" for rank in range(ranks.world - 1)]


def load(ctx):
    """Load an ordinary optimizer's state into fresh sharded ones, and go on."""
    found = {}
    for name in [*FUNCTIONAL, "ASGD"]:
        for arrangement, grouped in GROUPED.items():
            parameters, _, reference = trained(ctx, name, grouped)
            reference.optimizer.param_groups[0]["lr"] = 0.0078125
            fresh = sharded(ctx, grouped(parameters), name, lr=0.75)
            fresh.load_state_dict(copy.deepcopy(reference.optimizer.state_dict()))
            shown = [group["lr"] for group in fresh.param_groups]
            expected = [group["lr"] for group in reference.optimizer.param_groups]
            gap = None if shown == expected else f"learning rates {shown}, expected {expected}"
            gaps = [gap, go_on(fresh, parameters, reference, range(2, 5))]
            fresh.consolidate_state_dict()
            if ctx.rank == 0:
                gaps.append(difference(fresh.state_dict(), reference.optimizer.state_dict()))
            if any(gaps):
                found[f"{name}, {arrangement}"] = gaps
    return found


@check("ZERO-017")
def test_a_loaded_state_goes_on_as_the_ordinary_optimizer_would(ranks):
    assert ranks(load) == [{}] * ranks.world


def load_in_another_order(ctx):
    """A local optimizer that puts its parameters in an order of its own; the gap after what was saved was loaded."""
    parameters = some_parameters(ctx)
    zero = ctx.subject.ZeroRedundancyOptimizer(parameters, Sorting)
    copies = [copy.deepcopy(parameter) for parameter in parameters]
    alone = Sorting(copies)
    for iteration in range(4):
        for optimizer, targets in ((zero, parameters), (alone, copies)):
            give(targets, iteration)
            optimizer.step()
        if iteration == 1:
            saved = [None]
            zero.consolidate_state_dict(0)
            if ctx.rank == 0:
                saved = [zero.state_dict()]
            dist.broadcast_object_list(saved, 0)
            zero = ctx.subject.ZeroRedundancyOptimizer(parameters, Sorting)
            zero.load_state_dict(saved[0])
    return first_gap(parameters, copies)


@check("ZERO-017", worlds=MANY)
def test_an_optimizer_with_an_order_of_its_own_goes_on_from_what_it_loads(ranks):
    for rank, gap in enumerate(ranks(load_in_another_order)):
        assert gap is None, f"rank {rank}: {gap}"


#: what groups did not hold in earlier versions of torch; who loads such a state adds what it lacks
LATER_OPTIONS = ("amsgrad", "capturable", "decoupled_weight_decay", "differentiable", "foreach", "fused", "maximize")


def load_an_older_state(ctx):
    """By optimizer, where training goes on differently from a state whose groups lack what came later."""
    gaps = {}
    for name in FUNCTIONAL:
        parameters, _, reference = trained(ctx, name, in_two_groups)
        saved = copy.deepcopy(reference.optimizer.state_dict())
        for group, option in itertools.product(saved["param_groups"], LATER_OPTIONS):
            group.pop(option, None)
        fresh = sharded(ctx, in_two_groups(parameters), name)
        for optimizer in (fresh, reference.optimizer):
            optimizer.load_state_dict(copy.deepcopy(saved))
        gaps[name] = go_on(fresh, parameters, reference, range(2, 4))
    return gaps


@check("ZERO-017", worlds=MANY)
def test_a_state_that_an_earlier_version_has_saved_is_gone_on_with(ranks):
    assert ranks(load_an_older_state) == [dict.fromkeys(FUNCTIONAL)] * ranks.world


def look_at_the_loaded(ctx):
    """What the local optimizer holds after loading: entries, and where scalars and tensors lie."""
    parameters = some_parameters(ctx)
    reference = Reference(parameters, "Adam")
    give(reference.parameters, 0)
    reference.optimizer.step()
    state = reference.optimizer.state_dict()
    state["state"] = {
        index: {key: value.cpu() for key, value in entries.items()} for index, entries in state["state"].items()
    }
    zero = sharded(ctx, parameters, "Adam")
    zero.load_state_dict(copy.deepcopy(state))
    held = [
        (key, value.dim(), str(value.device.type)) for each in zero.optim.state.values() for key, value in each.items()
    ]
    owned = owners(sharded(ctx, parameters, lr=0.5), parameters, 0.5, ctx.rank)
    return len(zero.optim.state), owned.count(ctx.rank), held, ctx.device.type


@check("ZERO-017")
def test_each_rank_holds_the_states_of_its_own_parameters_on_their_device(ranks):
    results = ranks(look_at_the_loaded)
    assert sum(entries for entries, *_ in results) == 5
    for entries, owned, held, device in results:
        assert entries == owned
        for key, dimensions, where in held:
            assert where == ("cpu" if dimensions == 0 else device), key


def load_what_is_kept(ctx):
    """Load one dictionary twice, as somebody does who keeps it."""
    parameters, reference = some_parameters(ctx), Reference(some_parameters(ctx), "Adam", in_two_groups)
    give(reference.parameters, 0)
    reference.optimizer.step()
    kept = copy.deepcopy(reference.optimizer.state_dict())
    found = []
    for _ in range(2):
        fresh = sharded(ctx, in_two_groups(parameters), "Adam")
        fresh.load_state_dict(kept)
        lost = [index for index, state in kept["state"].items() if state is None]
        found.append(f"states {lost} are gone" if lost else difference(kept, reference.optimizer.state_dict()))
    with torch.no_grad():
        for parameter, other in zip(parameters, reference.parameters, strict=True):
            parameter.copy_(other)
    loaded = copy.deepcopy(reference.optimizer.state_dict())
    gap = go_on(fresh, parameters, reference, [1], sparsely=False)
    lost = [index for index, state in kept["state"].items() if state is None]
    return [*found, gap, f"states {lost} are gone" if lost else difference(kept, loaded)]


def hooks_after_saving(ctx):
    """How many hooks an optimizer has whose state was saved and loaded several times."""
    _, zero, _ = trained(ctx, "Adam", in_two_groups)
    registries = [name for name, value in vars(zero).items() if name.endswith("_hooks") and isinstance(value, dict)]
    before = {name: len(vars(zero)[name]) for name in registries}
    for _ in range(3):
        zero.consolidate_state_dict(0)
        if ctx.rank == 0:
            zero.load_state_dict(zero.state_dict())
    return before, {name: len(vars(zero)[name]) for name in registries}


@check("ZERO-017", worlds=MANY)
def test_saving_and_loading_leave_no_hooks_behind(ranks):
    for before, after in ranks(hooks_after_saving):
        assert before
        assert after == before


@check("ZERO-018", worlds=MANY)
def test_loading_leaves_the_dictionary_as_it_was_and_so_does_the_next_step(ranks):
    assert ranks(load_what_is_kept) == [[None] * 4] * ranks.world


def save_shared_entries(ctx):
    """The user's optimizer keeps counters in its groups; they are saved and loaded with the groups."""
    parameters, zero, _ = trained(ctx, "a user's own", in_two_groups, steps=3)
    zero.consolidate_state_dict()
    saved = [zero.state_dict() if ctx.rank == 0 else None]
    if ctx.world > 1:
        dist.broadcast_object_list(saved, src=0)
    fresh = sharded(ctx, in_two_groups(parameters), "a user's own")
    fresh.load_state_dict(saved[0])
    locally = Drift.made[-1]()
    return [[group["count"] for group in groups] for groups in (fresh.param_groups, locally.param_groups)]


@check("ZERO-017")
def test_group_attributes_of_a_users_own_optimizer_are_taken_over(ranks):
    assert ranks(save_shared_entries) == [[[3, 3], [3, 3]]] * ranks.world


def save_on_each(ctx, kind, closed):
    """On every rank in turn: what a consolidated state says of steps, and the gap if an ordinary optimizer goes on.

    ``closed``: the steps are given closures.
    """
    parameters = some_parameters(ctx)
    once = copy.deepcopy(parameters)
    zero = ctx.subject.ZeroRedundancyOptimizer(in_groups_of_one(parameters), kind)
    reference = kind(in_groups_of_one(once))
    step_all([(zero, parameters), (reference, once)], range(3), *[lambda: None] * closed)
    saved = save_here(ctx, zero)
    found = [int(group["step"]) if "step" in group else None for group in saved["param_groups"]]
    anew = copy.deepcopy(parameters)
    ordinary = kind(in_groups_of_one(anew))
    ordinary.load_state_dict(saved)
    step_all([(ordinary, anew), (reference, once)], range(3, 5))
    return found, first_gap(anew, once)


def save_here(ctx, zero):
    """The state that is consolidated on this rank; all others do so in turn."""
    for rank in range(ctx.world):
        zero.consolidate_state_dict(to=rank)
        if ctx.rank == rank:
            saved = zero.state_dict()
    return saved


@check("ZERO-016", worlds=MANY)
def test_what_is_counted_in_a_group_is_saved_by_ranks_that_own_nothing_of_it(ranks):
    several = ((Skipping, False), (Skipping, True), (SkippingInTensors, False))
    for (kind, closed), told in ranks.each(save_on_each, several, spread=True):
        for rank, (steps, gap) in enumerate(told):
            assert set(steps) == {3}, f"rank {rank}, {kind.__name__}, {closed=}: steps of the groups: {steps}"
            assert gap is None, f"rank {rank}, {kind.__name__}, {closed=}: {gap}"


def save_a_copy(ctx):
    """Why an optimizer is not copied, or what the consolidated state of the copy says of steps."""
    parameters = some_parameters(ctx)
    zero = ctx.subject.ZeroRedundancyOptimizer(in_groups_of_one(parameters), Skipping)
    step_all([(zero, parameters)], range(3))
    steps = []
    error = caught(lambda: steps.extend(
        group.get("step") for group in save_here(ctx, copy.deepcopy((parameters, zero))[1])["param_groups"]
    ))  # fmt: skip
    return error, steps


@check("ZERO-008", worlds=MANY, beyond=False)
def test_a_copied_optimizer_saves_what_is_counted_in_its_groups_or_copying_is_refused(ranks):
    for rank, (error, steps) in enumerate(ranks(save_a_copy)):
        if error is None:
            assert set(steps) == {3}, f"rank {rank}: steps of the groups: {steps}"
        else:
            assert error.is_a(TypeError), f"rank {rank}: {error}"
            ranks.at_limit("an optimizer is not copied")


def save_a_number(ctx):
    """Go on from a consolidated state, ordinarily and sharded: where the parameters differ from one without a stop."""
    parameters = some_parameters(ctx)
    once, ordinary, anew = (copy.deepcopy(parameters) for _ in range(3))
    zero, reference = ctx.subject.ZeroRedundancyOptimizer(parameters, Slowing), Slowing(once)
    step_all([(zero, parameters), (reference, once)], range(3))
    zero.consolidate_state_dict()
    saved = [zero.state_dict() if ctx.rank == 0 else None]
    dist.broadcast_object_list(saved, src=0)
    if "taken" not in saved[0]:
        return f"saved: {sorted(saved[0])}"
    fresh = [Slowing(ordinary), ctx.subject.ZeroRedundancyOptimizer(anew, Slowing)]
    for targets in (ordinary, anew):
        for target, parameter in zip(targets, parameters, strict=True):
            target.data.copy_(parameter.data)
    for optimizer in fresh:
        optimizer.load_state_dict({**copy.deepcopy(saved[0]), "taken": 9})  # to be given up for another one
        optimizer.load_state_dict(saved[0])
    step_all([(fresh[0], ordinary), (fresh[1], anew), (reference, once)], range(3, 5))
    return first_gap(ordinary, once), first_gap(anew, once)


def step_all(pairs, iterations, *arguments):
    for iteration in iterations:
        for optimizer, targets in pairs:
            give(targets, iteration)
            optimizer.step(*arguments)


@check("ZERO-016", worlds=MANY)
def test_what_an_optimizer_saves_of_itself_is_in_the_consolidated_state(ranks):
    assert ranks(save_a_number) == [(None, None)] * ranks.world
