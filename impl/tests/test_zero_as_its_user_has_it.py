"""What a program does to an optimizer between steps and around them: with ZeRO as with the ordinary optimizer."""

import collections
import copy
import pickle
import warnings

import pytest
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from conformance.fixtures.models import integers
from conformance.ranks import caught

from .zero_training import give_gradients, parameters

PROGRAMS = {}


def program(function):
    """One that makes an optimizer by the function that it is given, and returns what all ranks should have alike."""
    PROGRAMS[function.__name__.replace("_", " ")] = function
    return function


def train(optimizer, params, *iterations):
    for iteration in iterations:
        give_gradients(params, iteration)
        optimizer.step()


def numbers(params):
    return [parameter.tolist() for parameter in params]


@program
def an_entry_is_taken_out_of_a_group(make):
    params = parameters()
    optimizer = make(params, torch.optim.SGD, lr=0.5)
    for rate in (0.5, 0.125):  # a second schedule begins with the rate that is there then
        for group in optimizer.param_groups:
            group.pop("initial_lr", None)
            group["lr"] = rate
        train(optimizer, params, 0)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
        train(optimizer, params, 1)
        scheduler.step()
    return numbers(params), optimizer.param_groups[0]["initial_lr"]


@program
def the_state_is_replaced_by_an_empty_one(make):
    params = parameters()
    optimizer = make(params, torch.optim.Adam, lr=0.1)
    train(optimizer, params, 0, 1)
    optimizer.state = collections.defaultdict(dict)
    train(optimizer, params, 2)
    return numbers(params)


class Restarting(torch.optim.SGD):
    """Drops its momentum by itself in every second step."""

    def step(self, closure=None):
        self.calls = getattr(self, "calls", 0) + 1
        if self.calls % 2:
            self.state = collections.defaultdict(dict)
        return super().step(closure)


@program
def the_optimizer_replaces_its_state_itself(make):
    params = parameters()
    optimizer = make(params, Restarting, lr=0.1, momentum=0.5)
    train(optimizer, params, 0, 1, 2, 3)
    return numbers(params)


@program
def parameters_are_replaced(make):
    params = parameters()
    optimizer = make(params, torch.optim.Adam, lr=0.1)
    train(optimizer, params, 0, 1)
    for place in (0, 3):
        params[place] = successor = nn.Parameter(2 * params[place].detach())
        state = optimizer.state.pop(optimizer.param_groups[0]["params"][place], None)
        optimizer.param_groups[0]["params"][place] = successor
        if state:
            optimizer.state[successor] = state
    train(optimizer, params, 2, 3)
    return numbers(params)


@program
def groups_and_parameters_are_removed(make):
    params = parameters()
    optimizer = make([{"params": params[:2]}, {"params": params[2:], "lr": 0.25}], torch.optim.Adam, lr=0.1)
    train(optimizer, params, 0, 1)
    del optimizer.param_groups[0], optimizer.param_groups[0]["params"][1]
    train(optimizer, params, 2)
    optimizer.add_param_group({"params": params[:1]})
    train(optimizer, params, 3)
    return numbers(params)


@program
def hooks_of_all_optimizers_hear_of_a_step_once(make):
    params, heard = parameters(), []

    def halve(optimizer, *_):
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad.mul_(0.5)

    handles = [
        register_optimizer_step_pre_hook(halve),
        register_optimizer_step_post_hook(lambda *_: heard.append("stepped")),
    ]
    try:
        train(make(params, torch.optim.SGD, lr=0.5), params, 0)
    finally:
        for handle in handles:
            handle.remove()
    return numbers(params), heard


@program
def a_hook_unpacks_what_is_loaded(make):
    params = parameters()
    ordinary = torch.optim.Adam(params, lr=0.1)
    train(ordinary, params, 0, 1)
    saved = {"epoch": 3, "optimizer": ordinary.state_dict()}
    optimizer = make(params, torch.optim.Adam, lr=0.1)
    optimizer.register_load_state_dict_pre_hook(lambda _, saved: saved["optimizer"])
    optimizer.load_state_dict(copy.deepcopy(saved))
    train(optimizer, params, 2)
    return numbers(params)


@program
def one_parameter_is_listed_twice(make):
    params = parameters()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        optimizer = make([params[1], *params, params[1]], torch.optim.SGD, lr=0.5, momentum=0.5)
    train(optimizer, params, 0, 1, 2)
    return numbers(params)


def with_one_memory(make, **views):
    whole = integers(4, 6, seed=1)
    parts = [whole, whole[:, :3], whole[:, 3:], whole.view(-1)[:2], integers(4, 3, seed=2)]
    params = [nn.Parameter(part) for part in parts]
    optimizer = make(params, torch.optim.AdamW, lr=0.5, weight_decay=0.5, **views)
    train(optimizer, params, 0, 1)
    optimizer.add_param_group({"params": [nn.Parameter(whole[1:])]})
    params = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    train(optimizer, params, 2, 3)
    return numbers(params), [parameter.data_ptr() - params[0].data_ptr() for parameter in params[:3]]


@program
def parameters_have_memory_in_common(make):
    return with_one_memory(make)


@program
def parameters_with_memory_in_common_keep_it_beside_views(make):
    return with_one_memory(make, parameters_as_bucket_view=True)


@program
def a_closure_thaws_parameters(make):
    params = parameters()
    for parameter in params[1:3]:
        parameter.requires_grad_(False)
    optimizer = make(params, torch.optim.SGD, lr=0.5)

    def closure():
        for parameter in params:
            parameter.requires_grad_(True)
        return loss_of_all(params)()

    return float(optimizer.step(closure)), numbers(params)


@program
def parameters_are_thawed_for_each_backward(make):
    params = parameters()
    for parameter in params[1:3]:
        parameter.requires_grad_(False)
    optimizer = make(params, torch.optim.SGD, lr=0.5)
    for _ in range(2):
        for parameter in params:
            parameter.requires_grad_(True)
        loss_of_all(params)()
        for parameter in params[1:3]:
            parameter.requires_grad_(False)
        optimizer.step()
    return numbers(params)


class Clamping(torch.optim.SGD):
    """Has step hooks of its own: takes half of each gradient, and keeps its parameters within bounds."""

    def __init__(self, params, lr):
        super().__init__(params, lr)
        self.register_step_pre_hook(lambda _, arguments, keywords: (arguments, {**keywords, "closure": self.halve}))
        self.register_step_post_hook(lambda *_: self.clamp())

    def own(self):
        return [parameter for group in self.param_groups for parameter in group["params"]]

    @torch.no_grad()
    def halve(self):
        for parameter in self.own():
            parameter.grad.mul_(0.5)

    @torch.no_grad()
    def clamp(self):
        for parameter in self.own():
            parameter.clamp_(-1, 1)


@program
def the_local_optimizer_has_hooks_of_its_own(make):
    params = parameters()
    train(make(params, Clamping, lr=0.5), params, 0, 1, 2)
    return numbers(params)


@program
def a_graph_is_gone_through_again_after_a_step(make):
    params = [nn.Parameter(integers(3, 4, seed=1)), nn.Parameter(integers(600, 500, seed=2)), *parameters(2)]
    loss = sum((parameter * parameter).sum() for parameter in params)
    loss.backward(retain_graph=True)
    make(params, torch.optim.SGD, lr=0.5).step()
    errors = [caught(torch.autograd.grad, loss, [parameter], retain_graph=True) for parameter in params]
    return [error and error.kinds[0] for error in errors]


def reshape(make, **views):
    params = parameters()
    optimizer = make(params, torch.optim.SGD, lr=0.5, **views)
    train(optimizer, params, 0)
    with torch.no_grad():
        params[1].data = torch.cat([params[1].data, torch.ones(3)])
        params[3].data = params[3].data.view(7, 1)
        params[4].data = params[4].data.view(2, 6)
    train(optimizer, params, 1, 2)
    return numbers(params)


@program
def parameters_are_given_other_shapes(make):
    return reshape(make)


@program
def parameters_in_views_are_given_other_shapes(make):
    return reshape(make, parameters_as_bucket_view=True)


@program
def parameters_move_from_group_to_group(make):
    params = parameters()
    optimizer = make([{"params": params[:3]}, {"params": params[3:], "lr": 2.0}], torch.optim.SGD, lr=0.5, momentum=0.5)
    train(optimizer, params, 0)
    first, second = optimizer.param_groups
    second["params"].insert(0, first["params"].pop())
    train(optimizer, params, 1, 2)
    first["params"] += [second["params"].pop(0), second["params"].pop(0)]
    train(optimizer, params, 3)
    return numbers(params)


class Stumbling(torch.optim.SGD):
    """Counts its steps in its groups, also the second, which fails."""

    def step(self, closure=None):
        for group in self.param_groups:
            group["count"] = group.get("count", 0) + 1
            group["lr"] = 0.5 / group["count"]
        if group["count"] == 2:
            raise KeyError("the second step fails")
        return super().step(closure)


@program
def a_step_fails_and_the_next_one_does_not(make):
    params = parameters()
    optimizer = make(params, Stumbling, lr=0.5)
    train(optimizer, params, 0)
    failed = caught(train, optimizer, params, 1)
    train(optimizer, params, 2)
    return numbers(params), failed and failed.kinds[0]


class Looking(torch.optim.SGD):
    """Steps with the gradients that are there after a trial step of all parameters."""

    @torch.no_grad()
    def step(self, closure):
        own = [parameter for group in self.param_groups for parameter in group["params"]]
        with torch.enable_grad():
            loss = closure()
        before = [parameter.clone() for parameter in own]
        for parameter in own:
            parameter.sub_(parameter.grad, alpha=self.param_groups[0]["lr"])
        with torch.enable_grad():
            closure()
        for parameter, value in zip(own, before, strict=True):
            parameter.copy_(value.sub_(parameter.grad, alpha=self.param_groups[0]["lr"]))
        return loss


def loss_of_all(params):
    """A closure whose gradients depend on every parameter."""
    def closure():
        for parameter in params:
            parameter.grad = None
        loss = torch.stack([parameter.sum() for parameter in params]).sum() ** 2 / 64
        loss.backward()
        return loss

    return closure


@program
def a_closure_is_evaluated_twice_in_a_step(make):
    params = parameters()
    optimizer = make(params, Looking, lr=0.125)
    return [float(optimizer.step(loss_of_all(params))) for _ in range(2)], numbers(params)


@program
def the_optimizer_is_copied_with_its_parameters(make):
    params = parameters()
    optimizer = make(params[:4], torch.optim.Adam, lr=0.1)
    train(optimizer, params, 0)
    optimizer.add_param_group({"params": params[4:], "lr": 0.25})
    train(optimizer, params, 1)
    twin_params, twin = copy.deepcopy((params, optimizer))
    train(twin, twin_params, 2, 3)
    train(optimizer, params, 2)  # from a state of its own
    return numbers(params), numbers(twin_params), [group["lr"] for group in twin.param_groups]


@program
def the_optimizer_is_copied_when_its_groups_and_its_state_have_changed(make):
    params = parameters()
    optimizer = make([{"params": params[:2]}, {"params": params[2:], "lr": 0.25}], torch.optim.Adam, lr=0.1)
    train(optimizer, params, 0)
    first, second = optimizer.param_groups
    first["params"].append(second["params"].pop(0))
    moved_params, moved = copy.deepcopy((params, optimizer))
    optimizer.state = collections.defaultdict(dict)
    begun_params, begun = copy.deepcopy((params, optimizer))
    train(moved, moved_params, 1, 2)
    train(begun, begun_params, 1, 2)
    return numbers(moved_params), numbers(begun_params)


def as_ordinary(ctx, name):
    """None if the program leaves the same with both; else what it leaves with each."""
    def sharded(params, kind, **settings):
        return ctx.subject.ZeroRedundancyOptimizer(params, kind, **settings)

    def ordinary(params, kind, parameters_as_bucket_view=False, **settings):
        return kind(params, **settings)

    ours, theirs = (PROGRAMS[name](make) for make in (sharded, ordinary))
    return None if ours == theirs else (ours, theirs)


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_leaves_what_it_leaves_with_the_ordinary_optimizer(run, name, world):
    assert run(as_ordinary, name, world=world) == [None] * world


def ask_for_every_state(ctx):
    """Whether a consolidated state is whole although every rank has asked for the states of all parameters."""
    params = parameters()
    zero = ctx.subject.ZeroRedundancyOptimizer(params, torch.optim.Adam, lr=0.1)
    train(zero, params, 0)
    found = [zero.state[parameter].get("step") for parameter in params]
    zero.consolidate_state_dict()
    saved = zero.state_dict()["state"] if ctx.rank == 0 else {}
    return sum(step is not None for step in found), [sorted(state) for state in saved.values()]


def test_who_asks_for_the_state_of_anothers_parameter_does_not_lose_it(run):
    (own, saved), (others, _) = run(ask_for_every_state, world=2)
    assert own + others == len(saved) == 5
    assert saved == [["exp_avg", "exp_avg_sq", "step"]] * 5


class Collecting(torch.optim.SGD):
    """Keeps containers of many kinds in its states."""

    @torch.no_grad()
    def step(self, closure=None):
        for parameter in self.param_groups[0]["params"]:
            state = self.state[parameter]
            if not state:
                state.update(
                    ordered=collections.OrderedDict(sum=torch.zeros_like(parameter)), counted=collections.Counter(),
                    filled=collections.defaultdict(int), last=collections.deque(maxlen=2), word="counted",
                )  # fmt: skip
            state["ordered"]["sum"] += parameter.grad
            state["counted"]["steps"] += 1
            state["filled"]["steps"] += 1
            state["last"].append(state["counted"]["steps"])


def collect(ctx):
    """The types in a consolidated state, and what its queue still holds."""
    params = parameters(2)
    zero = ctx.subject.ZeroRedundancyOptimizer(params, Collecting, lr=0.1)
    train(zero, params, 0, 1, 2)
    zero.consolidate_state_dict()
    states = zero.state_dict()["state"] if ctx.rank == 0 else {}
    return [([type(value).__name__ for value in state.values()], state["last"].maxlen) for state in states.values()]


def test_containers_in_a_consolidated_state_are_what_they_were(run):
    kinds = ["OrderedDict", "Counter", "defaultdict", "deque", "str"]
    assert run(collect, world=2)[0] == [(kinds, 2)] * 2


def evaluate_twice_in_a_context(ctx):
    params = parameters()
    zero = ctx.subject.ZeroRedundancyOptimizer(params, Looking, lr=0.125)
    with ctx.subject.Join([zero]):
        for _ in range(1 + ctx.rank):
            zero.step(loss_of_all(params))


def error_of_a_second_evaluation(ctx):
    return caught(evaluate_twice_in_a_context, ctx)


def test_where_a_rank_has_joined_a_second_evaluation_is_refused(run):
    errors = run(error_of_a_second_evaluation, world=2)
    assert all(error is not None and "closure several times" in error.text for error in errors)


def step_compiled(ctx):
    params = parameters()
    optimizer = ctx.subject.ZeroRedundancyOptimizer(params, torch.optim.SGD, lr=0.5, momentum=0.5)
    step = torch.compile(optimizer.step, backend="eager")
    for iteration in range(3):
        give_gradients(params, iteration)
        step()
    return numbers(params)


def test_a_compiled_step_is_the_step(run):
    params = parameters()
    train(torch.optim.SGD(params, lr=0.5, momentum=0.5), params, 0, 1, 2)
    assert run(step_compiled, world=2) == [numbers(params)] * 2


def refused(ctx):
    """What is refused, and as what."""
    zero = ctx.subject.ZeroRedundancyOptimizer(parameters(), torch.optim.SGD, lr=0.1)
    overlapped = ctx.subject.ZeroRedundancyOptimizer(parameters(), torch.optim.SGD, lr=0.1, overlap_with_ddp=True)
    errors = [
        caught(ctx.subject.ZeroRedundancyOptimizer, parameters(), torch.optim.LBFGS),
        caught(pickle.dumps, zero),
        caught(copy.deepcopy, overlapped),
    ]
    return [error and error.kinds[0] for error in errors]


def test_what_no_rank_can_do_by_itself_is_refused(run):
    assert run(refused, world=2) == [["ValueError", "TypeError", "TypeError"]] * 2
    assert run(refused, world=1) == [[None, "TypeError", "TypeError"]]
