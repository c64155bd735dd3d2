"""Calls of forward: which model is active, what the profiler sees, where inputs go, and when peers are needed."""

import itertools
from dataclasses import dataclass

import torch
from torch import nn

from conformance.api.checking import MANY, NotRun, check
from conformance.fixtures import models
from conformance.fixtures.observing import mean_of_all, mine, started, trained, wrapped
from conformance.fixtures.training import ddp, gradients, private
from conformance.ranks import caught

# -- DDP-042, DDP-043: the active module


class Asking(nn.Module):
    """Asks, in its forward, which DDP model is active; may call an inner model first, or fail."""

    def __init__(self, ask, inner=None):
        super().__init__()
        self.a = models.scalar()
        self.ask, self.inner, self.told, self.fail = ask, inner, [], False

    def forward(self, x):
        self.told.append(self.ask())
        if self.inner is not None:
            x = self.inner(x)
            self.told.append(self.ask())
        if self.fail:
            raise ValueError("the forward fails")
        return self.a(x)


def ask_for_the_active(ctx):
    ask = private(ctx.subject.DistributedDataParallel, "_get_active_ddp_module")
    model = wrapped(ctx, Asking(ask))
    outside = [ask()]
    trained(model, mine(ctx))
    outside.append(ask())
    model.module.fail = True
    error = caught(model, mine(ctx))
    outside.append(ask())
    model.module.fail = False
    told = [each is model for each in model.module.told], [each is None for each in outside]
    return *told, error.kinds[0], trained(model, mine(ctx))["a.weight"]


@check("DDP-042", worlds=(1, 2))
def test_the_active_model_is_known_during_its_forward_only(ranks):
    expected = ([True, True], [True] * 3, "ValueError", [mean_of_all(ranks.world)])
    assert ranks(ask_for_the_active) == [expected] * ranks.world


def ask_in_a_nest(ctx):
    ask = private(ctx.subject.DistributedDataParallel, "_get_active_ddp_module")
    inner = wrapped(ctx, Asking(ask))
    outer = wrapped(ctx, Asking(ask, inner))
    with torch.no_grad():
        outer(mine(ctx))
    names = {id(inner): "inner", id(outer): "outer", id(None): None}
    return [names[id(each)] for each in outer.module.told], [names[id(each)] for each in inner.module.told], ask()


@check("DDP-043", worlds=(1, 2))
def test_after_an_inner_model_the_outer_one_is_active_again(ranks):
    for outer, inner, afterwards in ranks(ask_in_a_nest):
        assert inner == ["inner"]
        assert afterwards is None
        if outer == ["outer", None]:
            ranks.at_limit("after an inner DDP model no model counts as active in the rest of the outer forward")
        else:
            assert outer == ["outer", "outer"]


# -- DDP-044: the profiler


def profile_forwards(ctx):
    model = wrapped(ctx, models.scalar())
    with torch.autograd.profiler.profile() as profile:
        for _ in range(2):
            model(mine(ctx))
    return {event.key: event.count for event in profile.key_averages()}.get("DistributedDataParallel.forward")


@check("DDP-044", worlds=(1,))
def test_a_forward_has_its_name_in_profiles(ranks):
    assert ranks(profile_forwards) == [2]


# -- DDP-045, DDP-046: moving data


def move_arguments(ctx):
    model = wrapped(ctx, models.scalar())
    tensor = torch.ones(2)
    move = private(model, "to_kwargs")
    inputs, keywords = move((tensor, [tensor, "text"]), {"key": {"deep": tensor}}, ctx.device.index or 0)
    moved = [inputs[0][0], inputs[0][1][0], keywords[0]["key"]["deep"]]
    return [each.device.type for each in moved], [each.tolist() for each in moved], inputs[0][1][1]


@check("DDP-045", worlds=(1,))
def test_to_kwargs_moves_nested_arguments_to_a_device_of_the_models_type(ranks):
    types, values, text = ranks(move_arguments)[0]
    assert len(set(types)) == 1
    assert values == [[1.0, 1.0]] * 3
    assert text == "text"


def accelerator(ctx):
    if ctx.device.type == "cpu":
        raise NotRun("needs an accelerator: these ranks train on the CPU")
    return ctx.device.index or 0


def split_and_join(ctx):
    index = accelerator(ctx)
    model = wrapped(ctx, models.scalar(), dim=1)
    scatter, gather = private(model, "scatter"), private(model, "gather")
    (inputs,), (keywords,) = scatter((torch.arange(6.0).reshape(2, 3),), {"key": torch.ones(2, 1)}, [index])
    whole = gather([inputs[0], keywords["key"]], index)
    return inputs[0].device.type == ctx.device.type, inputs[0].tolist(), whole.tolist()


@check("DDP-045", worlds=(1,))
def test_scatter_and_gather_work_along_the_configured_dimension(ranks):
    assert ranks(split_and_join) == [(True, [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]], [[0, 1, 2, 1], [3, 4, 5, 1]])]


def split_what_is_no_tensor(ctx):
    model = wrapped(ctx, models.scalar())
    scatter, gather = private(model, "scatter"), private(model, "gather")
    inputs, keywords = scatter((1, "text"), {"key": 2.0}, [0, 1])
    return list(inputs), list(keywords), gather([{"key": None}, {"key": None}], 0)


@check("DDP-045", worlds=(1,))
def test_scatter_and_gather_take_what_is_no_tensor_on_any_machine(ranks):
    assert ranks(split_what_is_no_tensor) == [([(1, "text")] * 2, [{"key": 2.0}] * 2, {"key": None})]


class Noting(nn.Module):
    """Keeps the tensors that it was called with, nested ones included."""

    def __init__(self):
        super().__init__()
        self.a = models.scalar()
        self.called = ()

    def forward(self, x, more=None, factor=1):
        self.called = (x, more["deep"][0], factor) if more else (x,)
        return self.a(x) * factor


def feed_from_the_cpu(ctx):
    index = accelerator(ctx)
    module = Noting().to(ctx.device)
    told = []
    for device in ([index], [torch.device(ctx.device.type, index)]):
        model = ddp(ctx, module, device_ids=device)
        one = torch.ones(1, device="cpu")
        model(one.view(1, 1), {"deep": [one]}, factor=one).sum().backward()
        told.append({each.device.type for each in module.called} == {ctx.device.type})
    return told, caught(ddp(ctx, module), torch.ones(1, 1, device="cpu"))


@check("DDP-046", worlds=(1,))
def test_inputs_follow_the_single_device_id_and_stay_where_they_are_without_one(ranks):
    told, error = ranks(feed_from_the_cpu)[0]
    assert told == [True, True]
    assert error is not None
    assert error.is_a(RuntimeError)


# -- DDP-047, DDP-048: forwards that one rank makes alone


def evaluate_alone(ctx):
    model = wrapped(ctx, models.Sum())
    alone, told = [], []
    for iteration in range(3):  # between any two of them there may be something to prepare for training
        if ctx.rank == 0:
            with torch.no_grad():
                alone += started(ctx, lambda: [model(models.integers(3, 4).to(ctx.device)) for _ in range(2)])
        told.append(trained(model, models.divisible(ctx.rank, iteration).to(ctx.device))["layers.1.bias"])
    return len(alone), told


@check("DDP-047", worlds=MANY, deadline_s=5)
def test_a_rank_may_evaluate_a_model_without_buffers_alone_and_then_all_train(ranks):
    rows = 12.0 * 2  # every row adds the second layer's factor to its bias
    assert ranks(evaluate_alone, trace=True) == [(0, [[rows] * 4] * 3)] * ranks.world


def evaluate_with_buffers_alone(ctx):
    model = wrapped(ctx, nn.Sequential(models.scalar(), nn.BatchNorm1d(1)))
    model(torch.cat([mine(ctx), mine(ctx, 2)])).sum().backward()
    model.eval()
    if ctx.rank == 0:
        with model.no_sync(), torch.no_grad():  # so it says that it evaluates alone
            for _ in range(2):
                model(mine(ctx))
    ctx.meet("rank 0 has evaluated")
    with torch.no_grad():
        model(mine(ctx))  # and now all of them
    model.train()
    model(torch.cat([mine(ctx), mine(ctx, 2)])).sum().backward()
    return model.module[1].num_batches_tracked.item()


@check("DDP-048", worlds=(2, 3), deadline_s=4)
def test_a_rank_may_evaluate_a_model_with_buffers_alone_and_then_all_train(ranks):
    assert ranks(evaluate_with_buffers_alone) == [2] * ranks.world


# -- DDP-036: arguments of the user's own, however they hang together


@dataclass
class Node:
    """One of many, each of which knows others."""

    value: torch.Tensor
    known: list


class Walking(nn.Module):
    """Looks at one node alone."""

    def __init__(self):
        super().__init__()
        self.a = models.scalar()

    def forward(self, node):
        return self.a(node.value)


def give_what_hangs_together(ctx):
    """A chain of nodes, and a few that all know each other; the gradients."""
    model, told = wrapped(ctx, Walking()), []
    chain = [Node(mine(ctx), []) for _ in range(1000)]
    for node, following in itertools.pairwise(chain):
        node.known.append(following)
    crowd = [Node(mine(ctx), []) for _ in range(14)]
    for node in crowd:
        node.known.extend(crowd)
    for nodes in (chain, crowd):
        model.zero_grad()
        model(nodes[0]).sum().backward()
        told.append(gradients(model))
    return told


@check("DDP-036", worlds=(1, 2), beyond=False, deadline_s=10)
def test_arguments_may_hang_together_in_any_way(ranks):
    expected = [{"a.weight": [mean_of_all(ranks.world)]}] * 2
    assert ranks(give_what_hangs_together) == [expected] * ranks.world
