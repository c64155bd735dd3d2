"""What an optimizer may have beside a learning rate: its options, settings in tensors, states that are no tensors."""

import copy
import functools
from collections import deque

import torch
from torch import nn

from conformance.api import schedules as scenario
from conformance.api.checking import MANY, check
from conformance.fixtures.sharding import Drift, first_gap, give, one_by_one, some_parameters
from conformance.subjects import Unsupported

# -- ZERO-008, ZERO-011: options


class Noting(torch.optim.SGD):
    """Notes the settings with which it steps."""

    def step(self, closure=None):
        self.noted = [settings_of(group) for group in self.param_groups]
        return super().step(closure)


#: By name; a function makes the settings, as a tensor must not be shared.
OPTIONS = {
    "noting": (Noting, lambda _: {"lr": 0.5, "momentum": 0.5}),
    "made by a factory": (functools.partial(torch.optim.SGD, dampening=0.25), lambda _: {"lr": 0.1, "momentum": 0.5}),
    "one by one": (torch.optim.Adam, lambda _: {"lr": 0.1, "foreach": False}),
    "at once": (torch.optim.SGD, lambda _: {"lr": 0.1, "foreach": True, "momentum": 0.5, "nesterov": True}),
    "with Nesterov's momentum": (torch.optim.SGD, lambda _: {"lr": 0.1, "momentum": 0.5, "nesterov": True}),
    "betas in tensors": (
        torch.optim.Adam, lambda ctx: {"lr": 0.1, "betas": (torch.tensor(0.5), torch.tensor(0.75)), **one_by_one(ctx)},
    ),
    "fused": (torch.optim.SGD, lambda _: {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.3, "fused": True}),
    "not fused": (torch.optim.SGD, lambda _: {"lr": 0.1, "fused": False, "momentum": 0.5, "dampening": 0.25}),
    "maximizing": (torch.optim.AdamW, lambda _: {"lr": 0.1, "maximize": True, "amsgrad": True}),
    "a rate in a tensor": (torch.optim.Adam, lambda _: {"lr": torch.tensor(0.1)}),
    "centred": (torch.optim.RMSprop, lambda _: {"lr": 0.1, "centered": True, "momentum": 0.5}),
}


def settings_of(group):
    """All but the parameters; tensors as numbers."""
    numbers = {key: value.item() for key, value in group.items() if isinstance(value, torch.Tensor)}
    return {**group, **numbers, "params": len(group["params"])}


def step_with_options(ctx):
    """By option: where parameters, gradients, the settings shown and those that the local optimizer saw are wrong."""
    wrong = {}
    for name, (kind, settings) in OPTIONS.items():
        params = some_parameters(ctx)
        copies = [nn.Parameter(parameter.detach().clone()) for parameter in params]
        zero = ctx.subject.ZeroRedundancyOptimizer([{"params": params}], kind, **settings(ctx))
        ordinary = kind([{"params": copies}], **settings(ctx))
        shown, changed = [], []
        sparsely = not ordinary.defaults.get("fused")  # with momentum that steps only where each has a gradient
        for iteration in range(3):
            give(params, iteration, sparsely), give(copies, iteration, sparsely)
            given = [copy.deepcopy(parameter.grad) for parameter in params]
            zero.step(), ordinary.step()
            changed += [f"gradient {place} after step {iteration}" for place in neither(params, given, copies)]
            shown.append([settings_of(group) for group in zero.param_groups])
        right = [settings_of(group) for group in ordinary.param_groups]
        found = [first_gap(params, copies), *changed, *(None if each == right else f"{each}" for each in shown)]
        if kind is Noting and ctx.rank == 0:  # the largest parameter is its own, whatever the number of ranks
            noted = [{**group, "params": None} for group in zero.optim.noted]
            found.append(None if noted == [{**group, "params": None} for group in ordinary.noted] else f"noted {noted}")
        if any(found):
            wrong[name] = found
    return wrong


def neither(params, given, copies):
    """The places where a gradient is neither what was given nor what the ordinary optimizer has left of it."""
    triples = zip(params, given, copies, strict=True)
    return [
        place for place, (parameter, gradient, other) in enumerate(triples)
        if not same(parameter.grad, gradient) and not same(parameter.grad, other.grad)
    ]  # fmt: skip


@check("ZERO-008", "ZERO-011", worlds=MANY)
def test_every_option_of_an_optimizer_holds_and_is_shown_as_it_was_given(ranks):
    assert ranks(step_with_options) == [{}] * ranks.world


# -- ZERO-011: settings that go


def schedule_twice(ctx):
    """Two schedules with a step between them, when the first one's entry has been taken out: the gap, the second's."""
    told = []
    for optimizer, params in both(ctx, torch.optim.SGD, {"lr": 0.5}):
        for rate in (0.5, 0.125):
            for group in optimizer.param_groups:
                group.pop("initial_lr", None)
                group["lr"] = rate
            train(optimizer, params, 1, give)
            schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
            train(optimizer, params, 2, give)
            schedule.step()
        told.append((params, optimizer.param_groups[0]["initial_lr"], rate_of(optimizer)))
    (ours, *found), (theirs, *right) = told
    return first_gap(ours, theirs), found == right or (found, right)


def both(ctx, kind, settings):
    """The sharded optimizer and the ordinary one, each over parameters of its own."""
    params = some_parameters(ctx)
    copies = [nn.Parameter(parameter.detach().clone()) for parameter in params]
    sharded = ctx.subject.ZeroRedundancyOptimizer(params, kind, **settings)
    return (sharded, params), (kind(copies, **settings), copies)


@check("ZERO-011", worlds=MANY)
def test_what_is_taken_out_of_a_group_does_not_come_back_with_a_step(ranks):
    assert ranks(schedule_twice) == [(None, True)] * ranks.world


# -- ZERO-020: settings in tensors


class Listing(Drift):
    """Goes by the length of a list in its groups, too."""

    def step(self, closure=None, **keywords):
        for group in self.param_groups:
            group.setdefault("passed", []).append(group["count"])
            group["count"] += len(group["passed"])
        return super().step(closure, **keywords)


def fade_in_tensors(ctx, jobs):
    """A user's optimizer that changes its rate in place, in a tensor: gaps and rates after a context and a step."""
    told = []
    for schedule in jobs:
        params = some_parameters(ctx)
        copies = [nn.Parameter(parameter.detach().clone()) for parameter in params]
        zero = ctx.subject.ZeroRedundancyOptimizer(params, Listing, lr=torch.tensor(0.5), fade=0.5)
        ordinary = Listing(copies, lr=torch.tensor(0.5), fade=0.5)
        with ctx.subject.Join([zero]):
            train(zero, params, schedule[ctx.rank], give)
        train(ordinary, copies, max(schedule), give)
        told.append((first_gap(params, copies), rate_of(zero) == rate_of(ordinary)))
        for optimizer, targets in ((zero, params), (ordinary, copies)):
            give(targets, 20)
            optimizer.step()
        told.append((first_gap(params, copies), rate_of(zero) == rate_of(ordinary)))
    return told


def train(optimizer, params, iterations, give):
    for iteration in range(iterations):
        give(params, iteration)
        optimizer.step()


def rate_of(optimizer):
    return float(optimizer.param_groups[0]["lr"])


@check("ZERO-020", worlds=MANY, deadline_s=10)
def test_a_rate_that_the_optimizer_changes_in_a_tensor_is_one_and_the_same_on_joined_ranks(ranks):
    upwards = scenario.linear(ranks.world, 1)
    assert ranks(fade_in_tensors, (upwards, upwards[::-1])) == [[(None, True)] * 4] * ranks.world


class Weighing(torch.optim.SGD):
    """Learns by the sum of a group's factors, of which there may be another number in each step, or a plain number."""

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.sub_(parameter.grad, alpha=torch.as_tensor(group["factors"]).sum().item())


def ends(world):
    """The first rank is the first to join, or the last that has inputs."""
    return (1, *[4] * (world - 1)), (4, *[1] * (world - 1))


def step_with_changes(ctx, jobs, kind, settings, change):
    """The gaps where ``change(group, parameters, iteration)`` is made to either optimizer's group before each step."""
    gaps = []
    for schedule in jobs:
        (zero, params), (ordinary, copies) = both(ctx, kind, settings)

        def train_on(optimizer, targets, iterations):
            for iteration in range(iterations):
                change(optimizer.param_groups[0], targets, iteration)
                give(targets, iteration)
                optimizer.step()

        with ctx.subject.Join([zero]):
            train_on(zero, params, schedule[ctx.rank])
        train_on(ordinary, copies, max(schedule))
        gaps.append(first_gap(params, copies))
    return gaps


def give_more_factors(group, _parameters, iteration):
    """Other factors, of another number, or one that is no tensor."""
    factors = torch.full(((1, 3, 2, 1)[iteration],), 0.25)
    group["factors"] = 0.5 if iteration == 2 else factors


def give_finer_factors(group, _parameters, iteration):
    """A whole number to begin with, later halves."""
    group["factors"] = torch.tensor([0.5 * iteration] if iteration else [1])


@check("ZERO-020", worlds=MANY, deadline_s=10)
def test_settings_in_tensors_may_be_of_other_shapes_and_dtypes_in_each_step(ranks):
    for change in (give_more_factors, give_finer_factors):
        gaps = ranks(step_with_changes, ends(ranks.world), Weighing, {}, change)
        assert gaps == [[None] * 2] * ranks.world, change.__name__


class Favouring(torch.optim.SGD):
    """Goes twice as far with the parameters that a group names beside its own."""

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                favoured = any(parameter is each for each in group["favoured"]["here"])
                parameter.sub_(parameter.grad, alpha=group["lr"] * (1 + favoured))


def name_favourites(group, parameters, iteration):
    """Some of the parameters once more, and another rate."""
    group["lr"] = 0.5 / (1 + iteration)
    group["favoured"] = {"here": list(parameters[1:] if iteration < 2 else parameters[:2])}


@check("ZERO-020", worlds=MANY, deadline_s=10)
def test_parameters_that_settings_name_are_those_that_are_stepped_on_joined_ranks_too(ranks):
    gaps = ranks(step_with_changes, ends(ranks.world), Favouring, {"lr": 0.5}, name_favourites)
    assert gaps == [[None] * 2] * ranks.world


# -- ZERO-020: gradients of another dtype than their parameters


def step_in_two_dtypes(ctx, jobs):
    """Parameters in bfloat16, of which most keep their gradients in float32, on uneven inputs: the gaps."""
    gaps = []
    for schedule in jobs:
        params = [nn.Parameter((parameter.detach() / 8).bfloat16()) for parameter in some_parameters(ctx)]
        copies = [nn.Parameter(parameter.detach().clone()) for parameter in params]
        if not hasattr(params[0], "grad_dtype"):
            raise Unsupported("the parameters of this torch have no grad_dtype")
        for parameter in (*params[1:], *copies[1:]):
            parameter.grad_dtype = torch.float32
        zero = ctx.subject.ZeroRedundancyOptimizer(params, Finely, lr=1.0)
        ordinary = Finely(copies, lr=1.0)
        with ctx.subject.Join([zero]):
            train(zero, params, schedule[ctx.rank], give_finely)
        train(ordinary, copies, max(schedule), give_finely)
        gaps.append(first_gap(params, copies))
    return gaps


class Finely(torch.optim.SGD):
    """Steps with what a gradient has beyond one: all of it is lost where the gradient is rounded to bfloat16."""

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.sub_(((parameter.grad.double() - 1) * 2.0**12).to(parameter.dtype))


def give_finely(parameters, iteration):
    for place, parameter in enumerate(parameters):
        kept = parameter.grad_dtype if place else parameter.dtype
        finely = torch.full(parameter.shape, 1 + (1 + place + iteration) * 2.0**-12, device=parameter.device)
        parameter.grad = finely.to(kept)


@check("ZERO-020", worlds=MANY, deadline_s=10)
def test_gradients_in_a_finer_dtype_than_their_parameters_reach_joined_ranks_unrounded(ranks):
    upwards = scenario.linear(ranks.world, 1)
    assert ranks(step_in_two_dtypes, (upwards, upwards[::-1])) == [[None] * 2] * ranks.world


# -- ZERO-016: states that are no tensors


class Tally:
    """No container, and changes all the same."""

    def __init__(self):
        self.steps = 0

    def __eq__(self, other):
        return self.steps == other.steps

    __hash__ = None


class Remembering(torch.optim.SGD):
    """Keeps in its states a tuple, a queue, an object, tensors in a list and in a dictionary; each of them counts."""

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state.update(last=(0, 0.0), recent=deque(maxlen=9), sums=[torch.zeros_like(parameter)], by={})
                    state["tally"] = Tally()
                state["tally"].steps += 1
                state["last"] = (state["last"][0] + 1, group["lr"])
                state["recent"].append(state["last"][0])
                state["sums"][0].add_(parameter.grad)
                state["by"].setdefault("square", torch.zeros_like(parameter)).add_(parameter.grad**2)
                rate = group["lr"] * state["tally"].steps
                parameter.sub_(state["sums"][0], alpha=rate * sum(list(state["recent"])[-2:]))


def remember(ctx):
    """Save after two steps, load that into a fresh one, and step both once more: what is not as it should be."""
    params = some_parameters(ctx, 12)
    copies = [nn.Parameter(parameter.detach().clone()) for parameter in params]
    zero = ctx.subject.ZeroRedundancyOptimizer(params, Remembering, lr=0.125)
    ordinary = Remembering(copies, lr=0.125)
    for iteration in range(2):
        for optimizer, targets in ((zero, params), (ordinary, copies)):
            give(targets, iteration)
            optimizer.step()
    wrong = [first_gap(params, copies)]
    right = copy.deepcopy(ordinary.state_dict())
    for to in range(ctx.world):
        zero.consolidate_state_dict(to)
        if ctx.rank == to:
            found = zero.state_dict()["state"]
            equal = list(found) == list(right["state"]) and same(found, right["state"])
            wrong.append(None if equal else f"state {found}")
    fresh = ctx.subject.ZeroRedundancyOptimizer(params, Remembering, lr=0.125)
    fresh.load_state_dict(copy.deepcopy(right))
    for optimizer, targets in ((fresh, params), (ordinary, copies)):
        give(targets, 2)
        optimizer.step()
    return [*wrong, first_gap(params, copies)]


def go_on_behind_a_consolidation(ctx):
    """What is wrong on the target, if what was consolidated there is not the state of then after another step."""
    (zero, params), (ordinary, copies) = both(ctx, Remembering, {"lr": 0.125})
    for optimizer, targets in ((zero, params), (ordinary, copies)):
        train(optimizer, targets, 2, give)
    zero.consolidate_state_dict()
    right = copy.deepcopy(ordinary.state_dict()["state"])
    train(zero, params, 1, give)
    return None if ctx.rank or same(zero.state_dict()["state"], right) else "what was consolidated has gone on"


@check("ZERO-016", worlds=MANY)
def test_what_has_been_consolidated_does_not_go_on_with_the_next_step(ranks):
    assert ranks(go_on_behind_a_consolidation) == [None] * ranks.world


def ask_for_all(ctx):
    """Every rank asks for the states of all parameters before they are consolidated: where the saved one is wrong."""
    (zero, params), (ordinary, copies) = both(ctx, torch.optim.Adam, {"lr": 0.1})
    for optimizer, targets in ((zero, params), (ordinary, copies)):
        train(optimizer, targets, 2, give)
        for parameter in targets:
            optimizer.state[parameter].get("step")
    zero.consolidate_state_dict(ctx.world - 1)
    saved = zero.state_dict()["state"] if ctx.rank == ctx.world - 1 else ordinary.state_dict()["state"]
    return None if same(saved, ordinary.state_dict()["state"]) else f"state {saved}"


@check("ZERO-016", worlds=MANY)
def test_who_looks_for_states_that_others_have_leaves_them_whole(ranks):
    assert ranks(ask_for_all) == [None] * ranks.world


class Warming(torch.optim.SGD):
    """Counts its steps in a state that belongs to no parameter, and learns the more the further it has counted."""

    def step(self, closure=None):
        self.state["shared"]["steps"] = self.state["shared"].get("steps", 0) + 1
        for group in self.param_groups:
            group["lr"] = 0.125 * self.state["shared"]["steps"]
        return super().step(closure)


def load_what_belongs_to_nobody(ctx):
    """Load such a state into a fresh optimizer and go on, and save it again: the gap, and the count that is saved."""
    params = some_parameters(ctx)
    copies = [nn.Parameter(parameter.detach().clone()) for parameter in params]
    ordinary = Warming(copies, lr=0.125, momentum=0.5)
    train(ordinary, copies, 2, give)
    with torch.no_grad():
        for parameter, other in zip(params, copies, strict=True):
            parameter.copy_(other)
    fresh = ctx.subject.ZeroRedundancyOptimizer(params, Warming, lr=0.125, momentum=0.5)
    fresh.load_state_dict(copy.deepcopy(ordinary.state_dict()))
    for optimizer, targets in ((fresh, params), (ordinary, copies)):
        train(optimizer, targets, 2, give)
    fresh.consolidate_state_dict()
    saved = fresh.state_dict()["state"] if ctx.rank == 0 else ordinary.state_dict()["state"]
    return first_gap(params, copies), saved.get("shared"), same(saved, ordinary.state_dict()["state"])


@check("ZERO-017", worlds=MANY)
def test_a_state_that_belongs_to_no_parameter_is_loaded_by_all_and_saved_with_the_others(ranks):
    assert ranks(load_what_belongs_to_nobody) == [(None, {"steps": 4}, True)] * ranks.world


def same(mine, other):
    """Whether two states are alike in every part, and of the same types; tensors bit by bit."""
    if type(mine) is not type(other):
        return False
    if isinstance(mine, torch.Tensor):
        return torch.equal(mine.cpu(), other.cpu())
    if isinstance(mine, dict):
        return mine.keys() == other.keys() and all(same(mine[key], value) for key, value in other.items())
    if isinstance(mine, deque) and mine.maxlen != other.maxlen:
        return False
    if isinstance(mine, (list, tuple, deque)):
        return len(mine) == len(other) and all(map(same, mine, other))
    return mine == other


@check("ZERO-016", "ZERO-017", worlds=MANY)
def test_states_of_every_type_are_saved_and_loaded_as_they_are(ranks):
    assert ranks(remember) == [[None] * 3] * ranks.world
