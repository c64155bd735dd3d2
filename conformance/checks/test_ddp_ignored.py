"""Parameters and buffers that DDP was told to leave alone: neither broadcast nor reduced, whatever they are called."""

import torch
from torch import nn

from conformance.api.checking import MANY, WORLDS, check
from conformance.fixtures import models
from conformance.fixtures.observing import (
    mean_of_all,
    mine,
    reduced_elements,
    show_reductions,
    started,
    trained,
    wrapped,
)
from conformance.fixtures.training import ddp, gradient, private, scalar_means


def leave(ctx, model, *names):
    """Tell the subject to leave these alone; it is told before wrapping."""
    private(ctx.subject.DistributedDataParallel, "_set_params_and_buffers_to_ignore_for_model")(model, list(names))


# -- DDP-149: local in every respect


def branches_with_buffers(rank):
    """``a`` and ``b`` side by side, with two buffers on ``b``; everything different on each rank."""
    model = models.Branches()
    model.a.weight.data.fill_(1.0 + rank)
    model.b.weight.data.fill_(10.0 + rank)
    model.b.register_buffer("c", torch.full((1,), float(rank)))
    model.b.register_buffer("d", torch.full((1,), float(rank)))
    return model


def train_with_ignored(ctx):
    model = branches_with_buffers(ctx.rank)
    leave(ctx, model, "a.weight", "b.c")
    ddp = wrapped(ctx, model)
    found = []
    for _ in range(3):
        model.b.d.fill_(float(ctx.rank))
        found.append(trained(ddp, mine(ctx), with_b=True))
    return [model.a.weight.item(), model.b.weight.item(), model.b.c.item(), model.b.d.item()], found


@check("DDP-149", worlds=WORLDS, beyond=False)
def test_ignored_tensors_keep_their_values_and_their_local_gradients(ranks):
    for rank, (held, found) in enumerate(ranks(train_with_ignored)):
        assert held == [1.0 + rank, 10.0, rank, 0.0], f"rank {rank}"
        assert found == [{"a.weight": [12.0 * (rank + 1)], "b.weight": [mean_of_all(ranks.world)]}] * 3, f"rank {rank}"


WIDE = 64  # more elements than marks and padding have that travel along with one


def count_beside_an_ignored_layer(ctx):
    """How many elements each of three steps reduces: of a scalar layer, behind a wide one that is ignored."""
    layer = nn.Linear(1, WIDE, bias=False)
    leave(ctx, model := nn.Sequential(models.scalar(), layer), "1.weight")
    ddp = wrapped(ctx, model)
    return [reduced_elements(started(ctx, lambda: trained(ddp, mine(ctx)))) for _ in range(3)]


@check("DDP-149", worlds=MANY)
def test_gradients_of_ignored_parameters_are_not_even_sent(ranks):
    ranks(show_reductions, trace=True)
    for elements in ranks(count_beside_an_ignored_layer, trace=True):
        assert all(1 <= each < WIDE for each in elements), elements


class OwnShape(nn.Module):
    """A scalar layer beside a parameter and a buffer with as many elements as the rank's place."""

    def __init__(self, rank):
        super().__init__()
        self.a, self.inner = models.scalar(), nn.Module()
        self.inner.own = nn.Parameter(torch.ones(rank + 1))
        self.inner.register_buffer("seen", torch.zeros(rank + 1))

    def forward(self, x):
        return self.a(x) + (x * self.inner.own).sum()


def train_own_shapes(ctx):
    model = OwnShape(ctx.rank)
    leave(ctx, model, "inner.own", "inner.seen")
    return trained(wrapped(ctx, model), mine(ctx))


@check("DDP-149", worlds=MANY, beyond=False)
def test_ignored_tensors_may_have_another_shape_on_each_rank(ranks):
    for rank, found in enumerate(ranks(train_own_shapes)):
        assert found == {"a.weight": [mean_of_all(ranks.world)], "inner.own": [12.0 * (rank + 1)] * (rank + 1)}


# -- DDP-010, DDPJ-001: the device is that of what is managed


class Elsewhere(nn.Module):
    """A scalar layer behind a parameter and a buffer that lie on another type of device, and nobody uses."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Module()
        self.inner.own = nn.Parameter(torch.ones(2, device="meta"))
        self.inner.register_buffer("seen", torch.ones(2, device="meta"))
        self.a = models.scalar()

    def forward(self, x):
        return self.a(x)


def train_beside_another_device(ctx):
    """The device that a context would use, and the gradients in one on uneven inputs."""
    model = Elsewhere()
    model.a.to(ctx.device)
    leave(ctx, model, "inner.own", "inner.seen")
    outer, seen = ddp(ctx, model), []
    with outer.join():
        for iteration in range(1 + ctx.rank):
            model.a.zero_grad()
            outer(models.divisible_scalar(ctx.rank, iteration)).sum().backward()
            seen.append(gradient(model.a.weight))
    return outer.join_device == model.a.weight.device, seen


@check("DDP-010", "DDPJ-001", "DDP-149", worlds=WORLDS, beyond=False)
def test_ignored_tensors_may_lie_on_another_type_of_device(ranks):
    schedule = tuple(range(1, ranks.world + 1))
    for rank, (same, seen) in enumerate(ranks(train_beside_another_device)):
        assert same, f"rank {rank}: join_device is not the device of what is managed"
        assert seen == scalar_means(schedule)[: schedule[rank]], f"rank {rank}"


# -- DDP-150: marks


def look_at_marks(ctx):
    model = branches_with_buffers(ctx.rank)
    names = ["a.weight", "b.c", "no.such.name"]
    leave(ctx, model, *names)
    stored = private(model, "_ddp_params_and_buffers_to_ignore")
    tensors = [*model.named_parameters(), *model.named_buffers()]
    found = trained(wrapped(ctx, model), mine(ctx), with_b=True)  # an unknown name disturbs nothing later either
    return sorted(stored) == sorted(names), [name for name, t in tensors if getattr(t, "_ddp_ignored", False)], found


@check("DDP-150", worlds=(1, 2))
def test_names_are_kept_on_the_module_and_tensors_are_marked(ranks):
    for rank, (stored, marked, found) in enumerate(ranks(look_at_marks)):
        assert stored, "the names on the module are not those that were given"
        assert marked == ["a.weight", "b.c"]
        assert found == {"a.weight": [12.0 * (rank + 1)], "b.weight": [mean_of_all(ranks.world)]}


class Namesakes(nn.Module):
    """Scalar layers and counters whose names begin, end or go on like those of others."""

    NAMES = ("a", "ba", "aa", "a_more", "more")

    def __init__(self, rank):
        super().__init__()
        for place, name in enumerate(self.NAMES):
            layer = models.scalar(10.0 * place + rank)
            layer.register_buffer("count", torch.full((1,), 10.0 * place + rank))
            layer.register_parameter("weight_", nn.Parameter(torch.full((1, 1), 10.0 * place + 5 + rank)))
            self.add_module(name, layer)
        self.more.a = models.scalar(70.0 + rank)
        self.more.a.register_buffer("count", torch.full((1,), 70.0 + rank))

    def forward(self, x):
        layers = [module for module in self.modules() if isinstance(module, nn.Linear)]
        return torch.stack([layer(x) + x * getattr(layer, "weight_", 0) for layer in layers]).sum()


def leave_one_of_namesakes(ctx):
    model = Namesakes(ctx.rank)
    leave(ctx, model, "a.weight", "a.count")
    tensors = [*model.named_parameters(), *model.named_buffers()]
    before = {name: tensor.item() for name, tensor in tensors}
    found = trained(wrapped(ctx, model), mine(ctx))
    held = [*model.named_parameters(), *model.named_buffers()]  # who wraps may put others in place of buffers
    own = {name for name, tensor in held if tensor.item() == before[name]}
    return own, {name for name, t in tensors if getattr(t, "_ddp_ignored", False)}, found


@check("DDP-150", "DDP-149", worlds=(2, 3))
def test_a_name_that_begins_or_ends_with_an_ignored_one_is_another_name(ranks):
    ignored = {"a.weight", "a.count"}
    for rank, (own, marked, found) in enumerate(ranks(leave_one_of_namesakes)):
        assert marked == ignored
        if rank:
            assert own == ignored, f"what keeps the value of rank {rank}"
        own_gradient, mean = [12.0 * (rank + 1)], [mean_of_all(ranks.world)]
        right = {name: own_gradient if name == "a.weight" else mean for name in found}
        assert found == right, f"gradients of rank {rank}"


# -- DDP-151: at the root


class Root(nn.Module):
    """A parameter and a buffer of the root module, beside a scalar layer."""

    def __init__(self, rank):
        super().__init__()
        self.a = models.scalar(10.0 + rank)
        self.weight = nn.Parameter(torch.full((1,), 1.0 + rank))
        self.register_buffer("count", torch.full((1,), float(rank)))

    def forward(self, x):
        return self.a(x) + x * self.weight


def train_at_the_root(ctx, prefix):
    model = Root(ctx.rank)
    leave(ctx, model, f"{prefix}weight", f"{prefix}count")
    found = trained(wrapped(ctx, model), mine(ctx))
    return found, model.weight.item(), model.count.item(), model.a.weight.item()


@check("DDP-151", worlds=MANY, beyond=False, scenarios={"name": "", "dot and name": "."})
def test_tensors_of_the_root_module_are_ignored_altogether(ranks, scenario):
    for rank, (found, *held) in enumerate(ranks(train_at_the_root, scenario)):
        assert found == {"a.weight": [mean_of_all(ranks.world)], "weight": [12.0 * (rank + 1)]}, f"rank {rank}"
        assert held == [1.0 + rank, rank, 10.0], f"rank {rank}"


# -- DDP-152, DDP-153: lists of what is managed


def list_managed(ctx):
    model = models.Branches()
    leave(ctx, model, "a.weight")
    listed = private(ctx.subject.DistributedDataParallel, "_get_data_parallel_params")
    named = [(name, parameter is model.b.weight) for name, parameter in listed(model, named_params=True)]
    return [parameter is model.b.weight for parameter in listed(model)], named


@check("DDP-152", worlds=(1,))
def test_the_list_of_managed_parameters_leaves_ignored_ones_out(ranks):
    assert ranks(list_managed)[0][0] == [True]


@check("DDP-153", worlds=(1,))
def test_the_list_with_names_holds_the_managed_ones(ranks):
    named = ranks(list_managed)[0][1]
    assert ("b.weight", True) in named
    if named != [("b.weight", True)]:
        assert named == [("a.weight", False), ("b.weight", True)]
        ranks.at_limit("with names, ignored parameters are listed too")


# -- DDP-154: one tensor with two names


class Tied(nn.Module):
    """Two scalar layers that share their weight and a buffer, and a third one."""

    def __init__(self, rank):
        super().__init__()
        self.a, self.b, self.c = (models.scalar(weight + rank) for weight in (1.0, 1.0, 10.0))
        self.b.weight = self.a.weight
        for layer in (self.a, self.b):
            layer.register_buffer("place", torch.tensor(float(rank)) if layer is self.a else self.a.place)

    def forward(self, x):
        return self.a(x) + self.b(x) + self.c(x)


def tie(ctx, name):
    model = Tied(ctx.rank)
    leave(ctx, model, f"{name}.weight", f"{name}.place")
    found = trained(wrapped(ctx, model), mine(ctx))
    marked = bool(getattr(model.a.weight, "_ddp_ignored", False))
    way = marked, model.a.weight.item(), found["a.weight"]
    return found["c.weight"], model.c.weight.item(), way, model.a.place.item()


@check("DDP-154", worlds=MANY, beyond=False, scenarios={"first name": "a", "second name": "b"})
def test_a_shared_parameter_is_either_ignored_or_managed(ranks, scenario):
    ways = set()
    for rank, (found, held, way, place) in enumerate(ranks(tie, scenario)):
        assert (found, held) == ([mean_of_all(ranks.world)], 10.0), f"rank {rank}"
        ignored, managed = (True, 1.0 + rank, [24.0 * (rank + 1)]), (False, 1.0, [2 * mean_of_all(ranks.world)])
        assert way in (ignored, managed), f"mark, weight and gradient on rank {rank} disagree: {way}"
        assert place == (rank if way[0] else 0.0), f"mark and buffer on rank {rank} disagree: {way[0]}, {place}"
        ways.add(way[0])
    assert len(ways) == 1
