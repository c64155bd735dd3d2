"""Programs in which a sharded optimizer must look twice: hooks, thawing in between, other shapes, shared memory."""

import contextlib
import copy
import functools
import os
import warnings
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from conformance.api.checking import MANY, check
from conformance.api.schedules import linear, one_long
from conformance.fixtures.models import integers
from conformance.fixtures.observing import assert_refused
from conformance.fixtures.sharding import Decaying, Restarting, first_gap, give, some_parameters
from conformance.fixtures.training import private
from conformance.ranks import caught
from conformance.subjects import Unsupported


def beside_the_ordinary(ctx, program, *arguments):
    """Where the program leaves other parameters with a sharded optimizer than with an ordinary one; None if nowhere."""
    def sharded(parameters, kind, **settings):
        return ctx.subject.ZeroRedundancyOptimizer(parameters, kind, **settings)

    def ordinary(parameters, kind, parameters_as_bucket_view=False, **settings):
        return kind(parameters, **settings)

    return first_gap(program(ctx, sharded, *arguments), program(ctx, ordinary, *arguments))


# -- ZERO-008: hooks of the local optimizer


@torch.no_grad()
def bound(params):
    for parameter in params:
        parameter.clamp_(-1, 1)


class Bounded(torch.optim.SGD):
    """Halves gradients before its steps and keeps its parameters within bounds after them, by hooks of its own."""

    def __init__(self, params, lr):
        super().__init__(params, lr)
        self.register_step_pre_hook(self.halve)
        self.register_step_post_hook(self.bound)

    @torch.no_grad()
    def halve(self, *_):
        for parameter in self.param_groups[0]["params"]:
            parameter.grad.mul_(0.5)

    def bound(self, *_):
        bound(self.param_groups[0]["params"])


class Hinted(torch.optim.SGD):
    """A hook of its own gives each of its steps a keyword."""

    def __init__(self, params, lr):
        super().__init__(params, lr)
        self.register_step_pre_hook(lambda _, positional, keywords: (positional, {**keywords, "scale": 0.5}))

    @torch.no_grad()
    def step(self, closure=None, *, scale=1.0):
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.sub_(parameter.grad, alpha=scale * group["lr"])


def take_steps(ctx, make, kind, settings):
    params = some_parameters(ctx)
    optimizer = make(params, kind, lr=0.5, **settings)
    for iteration in range(5):
        give(params, iteration)
        optimizer.step()
    return params


@check("ZERO-008", worlds=MANY)
def test_hooks_of_the_local_optimizer_are_called_around_its_steps(ranks):
    several = [(take_steps, kind, {}) for kind in (Bounded, Hinted)]
    for (_, kind, _), told in ranks.each(beside_the_ordinary, several, spread=True):
        assert told == [None] * ranks.world, kind.__name__


def take_steps_amid_hooks_of_all(ctx, make):
    """Hooks of all optimizers double gradients before a step, and add one to the parameters after it."""
    params = some_parameters(ctx)

    @torch.no_grad()
    def double(*_):
        for parameter in params:
            parameter.grad.mul_(2)

    @torch.no_grad()
    def add_one(*_):
        for parameter in params:
            parameter.add_(1)

    with register_optimizer_step_pre_hook(double), register_optimizer_step_post_hook(add_one):
        optimizer = make(params, torch.optim.SGD, lr=0.5)
        for iteration in range(2):
            give(params, iteration)
            optimizer.step()
    return params


@check("ZERO-008", worlds=MANY)
def test_hooks_of_all_optimizers_are_called_once_for_a_step(ranks):
    for rank, gap in enumerate(ranks(beside_the_ordinary, take_steps_amid_hooks_of_all)):
        assert gap is None, f"rank {rank}: {gap}"


# -- ZERO-008, ZERO-013: parameters that are frozen whenever the optimizer looks


def thaw_for_backward(ctx, make, in_closure):
    """Some parameters require gradients only while they are computed, which may be in a closure."""
    params = some_parameters(ctx)
    frozen = params[1:4]
    set_trainable(frozen, False)
    optimizer = make(params, torch.optim.SGD, lr=0.5)

    def closure():
        set_trainable(frozen, True)
        loss = torch.stack([(parameter * parameter).sum() for parameter in params]).sum() / 8
        for parameter, gradient in zip(params, torch.autograd.grad(loss, params), strict=True):
            parameter.grad = gradient
        return loss

    seen = []
    for _ in range(2):
        if in_closure:
            optimizer.step(closure)
            set_trainable(frozen, False)
        else:
            closure()
            set_trainable(frozen, False)
            optimizer.step()
        seen += [parameter.detach().clone() for parameter in params]
    return seen


def set_trainable(params, trainable):
    for parameter in params:
        parameter.requires_grad_(trainable)


@check("ZERO-008", "ZERO-013", worlds=MANY, scenarios={"in a closure": True, "before the step": False})
def test_what_is_thawed_only_while_gradients_are_computed_is_stepped_and_sent(ranks, scenario):
    assert ranks(beside_the_ordinary, thaw_for_backward, scenario) == [None] * ranks.world


# -- ZERO-008: other shapes


def reshape(ctx, make):
    params = some_parameters(ctx)
    optimizer = make(params, torch.optim.SGD, lr=0.5)
    for iteration in range(3):
        give(params, iteration)
        optimizer.step()
        params[1].data = torch.cat([params[1].data, torch.ones(3, device=ctx.device)])
        params[iteration].data = params[iteration].data.flatten()
        params[4].data = params[4].data.t().contiguous()
    return params


@check("ZERO-008", worlds=MANY)
def test_parameters_may_be_given_other_shapes_between_steps(ranks):
    assert ranks(beside_the_ordinary, reshape) == [None] * ranks.world


# -- ZERO-008: memory in common


ROWS, COLUMN, CORNER = slice(2, None), (slice(None), slice(2)), (slice(2), slice(1, None))
#: by name: the views, if any, whether the last one is added after the first step, and whether the first is frozen
ONE_MEMORY = {
    "views of one tensor": ((ROWS, COLUMN, CORNER), False, False),
    "views of one tensor, one added later": ((ROWS, COLUMN, CORNER), True, False),
    "views of one tensor, one of them frozen": ((ROWS, 3, CORNER), False, True),
    "columns of one tensor and a row across them": (((slice(None), 0), (slice(None), 1), 1), False, False),
    "one listed three times": ((), False, False),
}


def step_with_one_memory(ctx, make, places, added, frozen, views):
    whole = integers(4, 6, seed=1).to(ctx.device)
    count = 3 * ctx.world - added  # so that what is added finds the least on another rank than that of the views
    apart = [integers(4, 3, seed=2 + place).to(ctx.device) for place in range(count)]
    if places:
        first, second, last = (whole[place] for place in places)
        params = listed = [nn.Parameter(part) for part in (first, second, *apart, last)]
        params[0].requires_grad_(not frozen)
    else:
        params = some_parameters(ctx)
        listed = [params[1], *params, params[1]]
    with warnings.catch_warnings():  # of one that is listed twice, which is what we try
        warnings.simplefilter("ignore")
        settings = {"momentum": 0.5, "weight_decay": 0.5, "parameters_as_bucket_view": views}
        optimizer = make(listed[:-1] if added else listed, torch.optim.SGD, lr=0.5, **settings)
    for iteration in range(3):
        give(params, iteration)
        optimizer.step()
        if added and iteration == 0:
            optimizer.add_param_group({"params": params[-1:]})
    return params


@check("ZERO-008", worlds=MANY, scenarios=ONE_MEMORY)
def test_parameters_with_memory_in_common_are_stepped_as_by_the_ordinary_optimizer(ranks, scenario):
    several = [(step_with_one_memory, *scenario, views) for views in (False, True)]
    for (*_, views), told in ranks.each(beside_the_ordinary, several, spread=True):
        assert told == [None] * ranks.world, f"{views=}"


def step_beside_a_real_view(ctx, make):
    """A view of imaginary parts, of which one is a complex parameter's, is added after the first of three steps."""
    memory = integers(6).to(ctx.device, torch.complex64)
    params = [nn.Parameter(memory[5:]), nn.Parameter(torch.view_as_real(memory)[:, 1])]
    optimizer = make(params[:1], torch.optim.SGD, lr=0.5, momentum=0.5)
    for iteration in range(3):
        give(params, iteration)
        optimizer.step()
        if iteration == 0:
            optimizer.add_param_group({"params": params[1:]})
    return params


@check("ZERO-008", worlds=MANY)
def test_parameters_with_memory_in_common_may_be_of_different_dtypes(ranks):
    assert ranks(beside_the_ordinary, step_beside_a_real_view) == [None] * ranks.world


def own_side_by_side(ctx):
    """How many parameters of each group this rank owns; they are of several dtypes, side by side in one memory."""
    memory = torch.zeros(12, dtype=torch.float64, device=ctx.device)
    params = [nn.Parameter(memory[:4]), nn.Parameter(memory[4:8].view(torch.float32))]
    zero = ctx.subject.ZeroRedundancyOptimizer(params[:1], torch.optim.SGD, lr=0.5)
    zero.add_param_group({"params": params[1:]})
    return [len(group["params"]) for group in private(zero, "optim").param_groups]


@check("ZERO-007", "ZERO-014", worlds=MANY)
def test_parameters_side_by_side_in_one_memory_go_to_whoever_has_the_least(ranks):
    expected = [[1, 0], [0, 1], *[[0, 0]] * (ranks.world - 2)]
    assert ranks(own_side_by_side) == expected


def step_over_hosts(ctx, make, views):
    """Two parameters on hosts of their own, so that further ranks own nothing."""
    params = [nn.Parameter(integers(6, 4, seed=place).to(ctx.device)) for place in range(2)]
    optimizer = make(params, torch.optim.SGD, lr=0.5, momentum=0.5, parameters_as_bucket_view=views)
    for iteration in range(3):
        give(params, iteration)
        # an implementation that asks is told that every rank has a host of its own
        with mock.patch.dict(os.environ, {"JOINERY_HOSTID": f"host {ctx.rank}"}):
            optimizer.step()
    return params


@check("ZERO-008", worlds=(3, 4))
def test_hosts_that_own_nothing_get_what_others_step(ranks):
    told = [ranks(beside_the_ordinary, step_over_hosts, views) for views in (False, True)]
    assert told == [[None] * ranks.world] * 2


def show_places(ctx):
    """How many ranks an optimizer over all but the first is shared by, and who this one is among them and among all."""
    group = dist.new_group(range(1, ctx.world))
    if ctx.rank == 0:
        return None
    zero = ctx.subject.ZeroRedundancyOptimizer(some_parameters(ctx), torch.optim.SGD, process_group=group, lr=0.5)
    return [private(zero, name) for name in ("world_size", "rank", "global_rank")]


@check("ZERO-001", worlds=(3, 4))
def test_an_optimizer_shows_who_shares_it(ranks):
    assert ranks(show_places) == [None, *([ranks.world - 1, rank - 1, rank] for rank in range(1, ranks.world))]


def tie(params, _):
    params[1].data = params[0].data


def bridge(params, optimizer):
    """A view of what lies side by side in two parameters is added."""
    params.append(nn.Parameter(torch.as_strided(params[2].data, (4,), (1,), 2)))
    optimizer.add_param_group({"params": params[-1:]})


#: by name: what the program does, and whether also with bucket views, which take parameters apart
LATER = {"tied": (tie, (False, True)), "bridged": (bridge, (False,))}


def step_with_memory_shared_later(ctx, make, share, views):
    """Three steps with momentum, after the first of which parameters share memory; what is refused from then on."""
    params = [nn.Parameter(integers(4, seed=place).to(ctx.device)) for place in range(2)]
    params += map(nn.Parameter, integers(8, seed=3).to(ctx.device).split(4))
    optimizer = make(params[:], torch.optim.SGD, lr=0.5, momentum=0.5, parameters_as_bucket_view=views)
    give(params, 0)
    optimizer.step()
    refused = [caught(share, params, optimizer)]
    for iteration in (1, 2):
        give(params, iteration)
        refused.append(caught(optimizer.step))
    return params, refused


def share_later(ctx, share, views):
    """What is refused, and where the steps are not those of the ordinary optimizer.

    Where the program is refused to share, the ordinary one goes on without that, too.
    """
    def ordinary(params, kind, parameters_as_bucket_view, **settings):
        return kind(params, **settings)

    ours, refused = step_with_memory_shared_later(ctx, ctx.subject.ZeroRedundancyOptimizer, share, views)
    shared = (lambda *_: None) if refused[0] else share
    theirs, _ = step_with_memory_shared_later(ctx, ordinary, shared, views)
    return refused, first_gap(ours[:4], theirs[:4])


@check("ZERO-008", worlds=MANY, scenarios=LATER)
def test_parameters_with_memory_in_common_only_later_are_stepped_by_one_owner_or_refused(ranks, scenario):
    share, ways = scenario
    for views in ways:
        for rank, (refused, gap) in enumerate(ranks(share_later, share, views)):
            if any(refused):
                assert_refused(refused[:1] if refused[0] else refused[1:], RuntimeError, "memory")
            if refused[0]:
                assert refused[1:] == [None, None], f"rank {rank}, {views=}: {refused[1:]} behind a refusal"
            if not any(refused[1:]):
                assert gap is None, f"rank {rank}, {views=}: {gap}"


# -- ZERO-008: parameters that come and go


def come_and_go(ctx, make):
    """Between steps parameters are replaced, moved, taken out and put back; all that there are, after each step."""
    params = some_parameters(ctx, 8)
    params.append(nn.Parameter(1 + params[5].detach()))  # which it is to replace
    groups = [{"params": params[:4]}, {"params": params[4:6], "lr": 0.25}]
    optimizer = make(groups, torch.optim.SGD, lr=0.5, momentum=0.5)
    (first, second), taken, seen = (group["params"] for group in optimizer.param_groups), [], []
    if (len(first), len(second)) != (4, 2):
        raise Unsupported(f"the groups of {ctx.subject.name} do not hold the parameters that they were given")

    def replace_two():
        """Their momentum is handed on."""
        first[0], second[1] = params[6], params[8]
        hand_on(params[0], params[6])
        hand_on(params[5], params[8])

    def hand_on(former, successor):
        state = optimizer.state.pop(former, None)
        if state:
            optimizer.state[successor] = state

    def move_from_group_to_group():
        second.insert(0, first.pop())

    def take_one_out():
        taken.append(first.pop())

    def take_two_out():
        taken.extend([second.pop(), first.pop()])

    def take_one_out_and_append_another():
        taken.append(first.pop(2))
        first.append(params[7])

    def put_one_back():
        first.insert(0, taken.pop())

    def put_one_back_in_a_group():
        optimizer.add_param_group({"params": taken.pop(), "lr": 0.125})

    def put_all_back():
        first.extend(taken)

    def take_the_last_out_and_add_it():
        optimizer.add_param_group({"params": [second.pop()], "lr": 0.0625})

    def make_groups_anew_and_replace_all():
        optimizer.param_groups[:] = [dict(group) for group in optimizer.param_groups]
        replace_all()

    def drop_the_first_group_and_replace_all():
        del optimizer.param_groups[0]
        replace_all()

    def put_a_view_ahead():
        """Of a parameter that is there already."""
        group = optimizer.param_groups[0]["params"]
        params.append(nn.Parameter(group[-1].detach()))
        group.insert(0, params[-1])

    def replace_all():
        for group in optimizer.param_groups:
            former, group["params"] = group["params"], [nn.Parameter(1 + old.detach()) for old in group["params"]]
            params.extend(group["params"])
            for old, new in zip(former, group["params"], strict=True):
                hand_on(old, new)

    for iteration, act in enumerate((
        take_one_out_and_append_another, replace_two, move_from_group_to_group, take_one_out, put_one_back,
        take_two_out, put_one_back_in_a_group, take_the_last_out_and_add_it, put_all_back,
        make_groups_anew_and_replace_all, drop_the_first_group_and_replace_all, put_a_view_ahead, lambda: None,
    )):  # fmt: skip
        give(params, iteration)
        optimizer.step()
        seen += [parameter.detach().clone() for parameter in params]
        act()
    return seen


@check("ZERO-008", worlds=(1, 2, 3, 4))
def test_parameters_that_come_and_go_are_stepped_with_the_states_that_they_have(ranks):
    told = ranks(beside_the_ordinary, come_and_go)
    for rank, gap in enumerate(told):
        assert gap is None, f"rank {rank}: {gap}"


# -- ZERO-008: an optimizer that begins anew by itself


@check("ZERO-008", worlds=MANY)
def test_a_state_that_the_optimizer_replaces_itself_is_replaced(ranks):
    assert ranks(beside_the_ordinary, take_steps, Restarting, {"momentum": 0.5}) == [None] * ranks.world


# -- ZERO-008: steps that fail


class Slipping(torch.optim.SGD):
    """Halves its rate in each step, and fails in every second one before it has stepped anything."""

    calls = 0

    def step(self, closure=None):
        self.calls += 1
        for group in self.param_groups:
            group["lr"] *= 0.5
        if self.calls % 2:
            raise LookupError("spilled the tea")
        return super().step(closure)


def go_on_after_failures(ctx, make, kind):
    """Steps fail in closures, which have set a rate by then, in the optimizer, or in one of torch's that refuses sparse
    gradients; the groups' settings each time. Each of eight ranks owns something, or it would fail in no step."""
    params, seen = [*some_parameters(ctx), *some_parameters(ctx)], []
    optimizer = make(params, kind or torch.optim.SGD, lr=1.0, momentum=0.5)
    for iteration in range(4):
        def closure(iteration=iteration):
            optimizer.param_groups[0]["lr"] *= 0.5
            if iteration % 2 == 0:
                raise LookupError("spilled the tea")

        give(params, iteration)
        for parameter in params if kind is torch.optim.RMSprop and iteration % 2 == 0 else ():
            parameter.grad = parameter.grad.to_sparse()
        failed = caught(optimizer.step, *[] if kind else [closure])
        shown = {key: value for key, value in optimizer.param_groups[0].items() if key != "params"}
        seen.append(torch.tensor([failed is not None, shown["lr"], shown["foreach"] is None]))
    return [*params, *seen]


FAILING = {"in closures": None, "in the optimizer": Slipping, "in one of torch's": torch.optim.RMSprop}


@check("ZERO-011", worlds=MANY, scenarios=FAILING)
def test_after_a_step_that_failed_everywhere_settings_are_those_of_the_ordinary_optimizer(ranks, scenario):
    for rank, gap in enumerate(ranks(beside_the_ordinary, go_on_after_failures, scenario)):
        assert gap is None, f"rank {rank}: {gap}"


# -- ZERO-008: parameters that come out of a graph, copies


def step_in_a_graph(ctx, make):
    """Parameters that are no leaves, which optimizers take if their steps are to be differentiated."""
    params = [parameter * 1 for parameter in some_parameters(ctx)]
    for parameter in params:
        parameter.retain_grad()
    optimizer = make(params, torch.optim.SGD, lr=0.5, momentum=0.5, differentiable=True)
    for iteration in range(3):
        give(params, iteration)
        optimizer.step()
    return params


@check("ZERO-008", worlds=MANY)
def test_steps_that_are_to_be_differentiated_are_those_of_the_ordinary_optimizer(ranks):
    for rank, gap in enumerate(ranks(beside_the_ordinary, step_in_a_graph)):
        assert gap is None, f"rank {rank}: {gap}"


class Counted(torch.optim.SGD):
    """Learns the less the more steps it has counted, in a state of no parameter."""

    def step(self, closure=None):
        self.state["all"]["steps"] = self.state["all"].get("steps", 0) + 1
        for group in self.param_groups:
            group["lr"] = 0.5 / self.state["all"]["steps"]
        return super().step(closure)


def go_on_with_copies(ctx, make, views):
    """Parameters and their optimizer are copied together after two steps; then both are trained, apart. At last
    whether as many of the copies lie in one memory as of what they are copied from."""
    params, seen = some_parameters(ctx, 7), []
    optimizer = make(params, Counted, lr=0.5, momentum=0.5, parameters_as_bucket_view=views)

    def train(optimizer, params, iterations):
        for iteration in iterations:
            give(params, iteration)
            optimizer.step()
        seen.extend(parameter.detach().clone() for parameter in params)

    train(optimizer, params, range(2))
    optimizer.param_groups[0]["weight_decay"] = 0.25
    others, another = copy.deepcopy((params, optimizer))
    another.param_groups[0]["momentum"] = 0.25
    train(another, others, range(2, 5))
    train(optimizer, params, range(5, 7))
    memories = [len({each.untyped_storage().data_ptr() for each in several}) for several in (params, others)]
    return [*seen, torch.tensor(memories[0] == memories[1])]


def copy_or_be_refused(ctx, views):
    """The error, if any; else where copies or the original are not those of the ordinary optimizer."""
    told = []
    error = caught(lambda: told.append(beside_the_ordinary(ctx, go_on_with_copies, views)))
    return error, told


@check("ZERO-008", worlds=MANY)
def test_a_copied_optimizer_goes_on_with_copies_of_the_parameters_or_copying_is_refused(ranks):
    for views in (False, True):
        told = ranks(copy_or_be_refused, views)
        for rank, (error, gaps) in enumerate(told):
            assert error is None or error.is_a(TypeError), f"rank {rank}, {views=}: {error}"
            assert error is not None or gaps == [None], f"rank {rank}, {views=}: {gaps}"
        if any(error for error, _ in told):
            ranks.at_limit("an optimizer is not copied" + " with bucket views" * views)


class Restless(torch.optim.SGD):
    """Draws each rate from a generator that it makes in its first step, and doubles the gradients that its groups name.

    A hook of its own counts its steps, until it takes that away.
    """

    def __init__(self, params, **settings):
        super().__init__(params, **settings)
        self.begins, self.counted = True, 0
        self.counting = self.register_step_pre_hook(self.count)

    def count(self, *_):
        self.counted += 1

    @torch.no_grad()
    def step(self, closure=None):
        if self.begins is not None:
            self.begins, self.drawing = None, torch.Generator().manual_seed(3)
        if self.counted == 4:
            self.counting.remove()
        rate = torch.randint(1, 9, (1,), generator=self.drawing, device="cpu").item() / 2 ** (3 + self.counted)
        for group in self.param_groups:
            group["lr"] = rate
            for parameter in group["params"]:
                parameter.grad.mul_(1 + any(parameter is each for each in group["doubled"]))
        return super().step(closure)

    def __deepcopy__(self, memo):
        """As torch's optimizers are not copied: with the attributes."""
        made = Restless(copy.deepcopy([dict(group) for group in self.param_groups], memo))
        made.load_state_dict(copy.deepcopy(self.state_dict()))
        for group, its in zip(made.param_groups, self.param_groups, strict=True):
            group["doubled"] = copy.deepcopy(its["doubled"], memo)
        made.begins, made.counted, made.drawing = self.begins, self.counted, torch.Generator()
        made.drawing.set_state(self.drawing.get_state())
        return made


def go_on_with_restless_copies(ctx, make, views):
    """The same with an optimizer that keeps more than its state."""
    params, seen = some_parameters(ctx, 7), []
    groups = [{"params": params, "doubled": params[1:3]}]
    optimizer = make(groups, Restless, lr=0.5, momentum=0.5, parameters_as_bucket_view=views)
    copies = None
    for iteration in range(7):
        if iteration == 2:
            copies = copy.deepcopy((params, optimizer))
        trained, stepped = copies if 1 < iteration < 5 else (params, optimizer)
        give(trained, iteration)
        stepped.step()
        seen.extend(parameter.detach().clone() for parameter in trained)
    return seen


def copy_restless_or_be_refused(ctx):
    told = []
    error = caught(lambda: told.extend(beside_the_ordinary(ctx, go_on_with_restless_copies, v) for v in (False, True)))
    return error, told


@check("ZERO-008", worlds=MANY, beyond=False)
def test_a_copied_optimizer_goes_on_with_what_else_the_local_one_keeps_or_copying_is_refused(ranks):
    told = ranks(copy_restless_or_be_refused)
    for rank, (error, gaps) in enumerate(told):
        assert error is None or error.is_a(TypeError), f"rank {rank}: {error}"
        assert error is not None or gaps == [None, None], f"rank {rank}: {gaps}"
    if any(error for error, _ in told):
        ranks.at_limit("an optimizer that keeps more than its state is not copied")


# -- ZERO-008: parameters of a class of their own


class Rounded(nn.Parameter):
    """Holds whole numbers: what is added to it in place leaves it rounded."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), keywords=None):
        with torch._C.DisableTorchFunctionSubclass():
            made = function(*args, **keywords or {})
            if function is torch.Tensor.add_:
                args[0].round_()
        return made


def step_rounded(ctx, make):
    params = [Rounded(integers(4, 3, seed=place).to(ctx.device)) for place in range(3 * ctx.world)]
    optimizer = make(params, torch.optim.SGD, lr=0.3)
    for iteration in range(3):
        give(params, iteration)
        optimizer.step()
    return [parameter.detach().as_subclass(torch.Tensor) for parameter in params]


@check("ZERO-008", worlds=MANY, beyond=False)
def test_parameters_that_know_better_how_to_be_added_to_are_stepped_one_by_one(ranks):
    assert ranks(beside_the_ordinary, step_rounded) == [None] * ranks.world


# -- ZERO-008: what a graph has saved


def step_between_forward_and_backward(ctx, views):
    """A step changes what a graph has saved: by parameter, whether to go back through the graph is an error."""
    params = some_parameters(ctx, ctx.world + 1)
    params[0] = nn.Parameter(integers(LARGE, seed=1).to(ctx.device))
    optimizer = ctx.subject.ZeroRedundancyOptimizer(params, torch.optim.SGD, lr=0.5, parameters_as_bucket_view=views)
    losses = [(parameter * parameter).sum() for parameter in params]
    give(params, 0)
    optimizer.step()
    return [caught(loss.backward) is not None for loss in losses]


LARGE = 1 << 18  # in elements of four bytes: what is that large may travel in another way


@check("ZERO-008", worlds=MANY)
def test_a_graph_that_has_saved_parameters_of_before_a_step_is_an_error_on_every_rank(ranks):
    for views in (False, True):
        for rank, told in enumerate(ranks(step_between_forward_and_backward, views)):
            assert all(told), f"rank {rank}, {views=}: went back through what a step has changed: {told}"


# -- ZERO-008: an optimizer for all parameters together


def step_together(ctx):
    """Whether LBFGS is refused; else where its steps are not those of the ordinary one."""
    def train(make):
        params = [*some_parameters(ctx), *some_parameters(ctx)]  # each of eight ranks owns some
        optimizer = make(params, lr=0.5, max_iter=2)

        def closure():
            for parameter in params:
                parameter.grad = None
            loss = torch.stack([(parameter**2).sum() for parameter in params]).sum() ** 2 / 64
            loss.backward()
            return loss

        for _ in range(2):
            optimizer.step(closure)
        return params

    def factory(params, **options):
        return torch.optim.LBFGS(params, **options)

    for kind in (torch.optim.LBFGS, functools.partial(torch.optim.LBFGS, history_size=4), factory):
        told = []
        error = caught(lambda kind=kind, told=told: told.append(
            train(lambda params, **options: ctx.subject.ZeroRedundancyOptimizer(params, kind, **options))
        ))  # fmt: skip
        if error is None and (gap := first_gap(told[0], train(kind))):
            return gap
        if error is not None and not error.is_a(ValueError):
            return str(error)
    return None


@check("ZERO-008", worlds=MANY)
def test_an_optimizer_that_steps_all_parameters_together_is_refused_or_right(ranks):
    for rank, gap in enumerate(ranks(step_together)):
        assert gap is None, f"rank {rank}: {gap}"


def step_frozen_ones(ctx, make):
    params = some_parameters(ctx)
    for parameter in params[1::2]:
        parameter.requires_grad_(False)
    optimizer = make(params, Decaying, lr=0.5, momentum=0.5)
    for iteration in range(2):
        give(params, iteration)
        optimizer.step()
    return params


@check("ZERO-008", worlds=MANY)
def test_what_an_optimizer_moves_without_a_gradient_reaches_all_ranks(ranks):
    for rank, gap in enumerate(ranks(beside_the_ordinary, step_frozen_ones)):
        assert gap is None, f"rank {rank}: {gap}"


# -- ZERO-011: settings that change in a closure, or in the dictionaries that the program gave


class Boosted(torch.optim.SGD):
    """Learns the more the greater the boost is that a group has, if any, once the closure has been called."""

    def step(self, closure):
        closure()
        for group in self.param_groups:
            group["lr"] *= group.get("boost", 1)
        super().step()


def set_rates_in_closures(ctx, make):
    params = some_parameters(ctx)
    optimizer = make(params, Boosted, lr=0.5, momentum=0.5)
    rates = []
    for iteration in range(3):
        def closure(iteration=iteration):
            give(params, iteration)
            for group in optimizer.param_groups:
                group["lr"] = 0.5 / (1 + iteration)
                group["boost"] = 4
                group.pop("initial_lr", None)

        optimizer.step(closure)
        rates.append(torch.tensor(optimizer.param_groups[0]["lr"]))
        rates.append(torch.tensor("initial_lr" in optimizer.param_groups[0]))
        optimizer.param_groups[0]["initial_lr"] = 0.5
    return [*params, *rates]


def set_tensors_in_closures(ctx, make):
    params = some_parameters(ctx, 8)
    optimizer = make(params, torch.optim.Adam, lr=0.5)

    def closure():
        give(params, 0)
        optimizer.param_groups[0]["lr"] = torch.tensor(0.25)

    optimizer.step(closure)
    return params


@check("ZERO-011", worlds=MANY)
def test_a_rate_that_a_closure_sets_holds_in_its_step(ranks):
    for program, told in ranks.each(beside_the_ordinary, (set_rates_in_closures, set_tensors_in_closures)):
        for rank, gap in enumerate(told):
            assert gap is None, f"rank {rank}: {gap}, {program.__name__}"


def change_what_was_given(ctx, make):
    *params, later = some_parameters(ctx, 6)
    groups = [{"params": params[:2]}, {"params": params[2:], "lr": 0.25}]
    optimizer = make(groups, torch.optim.SGD, lr=0.5)
    for iteration in range(4):
        if iteration == 2:
            groups.append({"params": later, "lr": 0.125})
            optimizer.add_param_group(groups[-1])
        for group in groups:
            group["lr"] = group.get("lr", 1.0) / 2
        give([*params, later], iteration)
        optimizer.step()
    return [*params, later]


@check("ZERO-011", worlds=MANY)
def test_groups_that_the_program_gave_are_those_that_it_changes_later(ranks):
    assert ranks(beside_the_ordinary, change_what_was_given) == [None] * ranks.world


# -- ZERO-017: hooks after a load


class Finely(torch.optim.SGD):
    """Keeps its parameters in finer copies."""

    @torch.no_grad()
    def step(self, closure=None):
        for parameter in self.param_groups[0]["params"]:
            fine = self.state[parameter].setdefault("fine", parameter.detach().float())
            fine.sub_(parameter.grad.float(), alpha=2.0**-9)
            parameter.copy_(fine)


class Knowing(Finely):
    """Loads its finer copies as they are."""

    def load_state_dict(self, state_dict):
        super().load_state_dict(state_dict)
        places = state_dict["param_groups"][0]["params"]
        for place, parameter in zip(places, self.param_groups[0]["params"], strict=True):
            self.state[parameter]["fine"] = state_dict["state"][place]["fine"].clone()


def load_knowingly(ctx, make):
    """An optimizer that loads its states itself; others' are none of its own."""
    params = [nn.Parameter(parameter.detach().bfloat16()) for parameter in some_parameters(ctx)]
    ordinary = Knowing(params, lr=1.0)
    give(params, 0)
    ordinary.step()
    optimizer = make(params, Knowing, lr=1.0)
    optimizer.load_state_dict(copy.deepcopy(ordinary.state_dict()))
    for iteration in range(4):
        give(params, iteration)
        optimizer.step()
    return params


def load_finely(ctx, make):
    """A hook after the load puts the finer copies in place, which a load by itself rounds."""
    params = [nn.Parameter(parameter.detach().bfloat16()) for parameter in some_parameters(ctx)]
    ordinary = Finely(params, lr=1.0)
    give(params, 0)
    ordinary.step()
    saved = ordinary.state_dict()
    optimizer = make(params, Finely, lr=1.0)

    def refine(loaded):
        for place, parameter in enumerate(params):
            if loaded.state.get(parameter):
                loaded.state[parameter]["fine"] = saved["state"][place]["fine"].clone()

    optimizer.register_load_state_dict_post_hook(refine)
    optimizer.load_state_dict(copy.deepcopy(saved))
    for iteration in range(4):
        give(params, iteration)
        optimizer.step()
    return params


def load_from_another_form(ctx, make):
    """A hook before the load takes what an optimizer loads out of a dictionary that holds more."""
    params = some_parameters(ctx)
    ordinary = torch.optim.SGD(params, lr=0.5, momentum=0.5)
    give(params, 0)
    ordinary.step()
    optimizer = make(params, torch.optim.SGD, lr=0.5, momentum=0.5)
    optimizer.register_load_state_dict_pre_hook(lambda _, saved: saved["optimizer"])
    optimizer.load_state_dict({"version": 1, "optimizer": copy.deepcopy(ordinary.state_dict())})
    give(params, 1)
    optimizer.step()
    return params


@check("ZERO-017", worlds=MANY)
def test_what_a_hook_before_a_load_makes_of_a_dictionary_is_loaded(ranks):
    assert ranks(beside_the_ordinary, load_from_another_form) == [None] * ranks.world


@check("ZERO-017", worlds=MANY)
def test_what_a_hook_behind_a_load_changes_is_what_is_stepped_from(ranks):
    assert ranks(beside_the_ordinary, load_finely) == [None] * ranks.world


@check("ZERO-017", worlds=MANY)
def test_an_optimizer_that_loads_its_states_itself_is_given_them_as_they_are(ranks):
    assert ranks(beside_the_ordinary, load_knowingly) == [None] * ranks.world


# -- ZERO-020: what joined ranks do after and between steps


class Fading(torch.optim.SGD):
    """Halves its rate in each step."""

    def step(self, closure=None):
        result = super().step(closure)
        for group in self.param_groups:
            group["lr"] *= 0.5
        return result


def step_in_a_context(ctx, schedule, hooked):
    """Hooks after each step bound the parameters, and those before it set the rate by their calls, in which all ranks
    communicate; without hooks the rate is set before each step. The gap at the end.

    The hooks are those of the optimizer, or of all optimizers. Behind the first step the parameters change their order.
    """
    def hook(optimizer, params, mean):
        calls = []

        def set_rate(stepped, *_):
            if stepped is optimizer:
                calls.append(mean(torch.ones(1, device=ctx.device)))
                optimizer.param_groups[0]["lr"] = 0.5 ** len(calls) * calls[-1].item()

        hooks = contextlib.ExitStack()
        if hooked:
            before = optimizer.register_step_pre_hook if hooked == "one" else register_optimizer_step_pre_hook
            behind = optimizer.register_step_post_hook if hooked == "one" else register_optimizer_step_post_hook
            hooks.enter_context(before(set_rate))
            hooks.enter_context(behind(lambda *_: bound(params)))
        return hooks

    def mean_of_ranks(number):
        dist.all_reduce(number)
        return number / ctx.world

    def train(optimizer, params, iterations):
        for iteration in iterations:
            if not hooked:
                optimizer.param_groups[0]["lr"] = 0.5
            give(params, iteration)
            optimizer.step()
            if iteration == 0:
                listed = optimizer.param_groups[0]["params"]
                listed.append(listed.pop(0))

    params, copies = some_parameters(ctx), some_parameters(ctx)
    kind = torch.optim.SGD if hooked else Fading  # where one step calls another, both call such hooks
    zero, ordinary = ctx.subject.ZeroRedundancyOptimizer(params, kind, lr=0.5), kind(copies, lr=0.5)
    with hook(zero, params, mean_of_ranks):
        with ctx.subject.Join([zero]):
            train(zero, params, range(schedule[ctx.rank]))
        train(zero, params, range(8, 9))
    with hook(ordinary, copies, lambda number: number):
        train(ordinary, copies, [*range(max(schedule)), 8])
    return first_gap(params, copies)


def step_in_contexts(ctx, schedule):
    return {hooked: step_in_a_context(ctx, schedule, hooked) for hooked in ("", "one", "all")}


@check("ZERO-020", worlds=MANY, deadline_s=8)
def test_joined_ranks_step_with_the_settings_and_hooks_of_live_ones(ranks):
    for schedule, told in ranks.each(step_in_contexts, (linear(ranks.world, 1), one_long(ranks.world, 0))):
        assert told == [{"": None, "one": None, "all": None}] * ranks.world, f"schedule {schedule}"
