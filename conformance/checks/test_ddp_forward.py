"""The forward of a DDP model: what passes through it, and how the wrapped module shows from outside."""

import collections
import dataclasses

import torch
from torch import nn

from conformance.api.checking import WORLDS, check
from conformance.fixtures import models
from conformance.fixtures.observing import mean_of_all, mine, trained, wrapped
from conformance.fixtures.training import whole
from conformance.ranks import caught

Pair = collections.namedtuple("Pair", "left right")


@dataclasses.dataclass
class Answer:
    value: torch.Tensor
    words: str


class Shaped(nn.Module):
    """Keeps what it was called with, and returns what ``shape`` makes of its output."""

    def __init__(self, shape=None):
        super().__init__()
        self.a = models.scalar()
        self.shape = shape
        self.called = []
        self.returned = None

    def forward(self, x, *more, factor=1, **named):
        self.called.append((x, more, factor, named))
        output = self.a(x) * factor
        self.returned = output if self.shape is None else self.shape(output)
        return self.returned


SHAPES = {
    "tensor": lambda out: out,
    "tuple": lambda out: (out, 3, "text"),
    "list": lambda out: [out, [out * 2]],
    "dict": lambda out: {"out": out, "none": None},
    "named tuple": lambda out: Pair(out, 5),
    "dataclass": lambda out: Answer(out, "words"),
}

# -- DDP-035, DDP-036: inputs and outputs


def pass_arguments(ctx):
    model = wrapped(ctx, Shaped())
    x = torch.arange(1.0 + ctx.rank, device=ctx.device).reshape(-1, 1)  # as many rows as the rank has to give
    listed, named = [1, "two"], {"three": torch.ones(2)}
    out = model(x, listed, factor=2, extra=named)
    seen, more, factor, keywords = model.module.called[0]
    intact = seen.shape == x.shape and torch.equal(seen, x)
    passed = more == (listed,) and factor == 2 and set(keywords) == {"extra"} and set(keywords["extra"]) == {"three"}
    return intact, passed, out.flatten().tolist()


@check("DDP-035", "DDP-036", worlds=WORLDS)
def test_each_rank_gets_its_own_arguments_as_they_are(ranks):
    for rank, (intact, passed, out) in enumerate(ranks(pass_arguments)):
        assert intact, f"the input of rank {rank} was changed, split or swapped"
        assert passed, f"arguments of rank {rank}"
        assert out == [2.0 * place for place in range(rank + 1)]


class Unasked(nn.Module):
    """Takes nothing: its data are its own."""

    def __init__(self):
        super().__init__()
        self.a = models.scalar()

    def forward(self):
        return self.a(torch.full((1, 1), 12.0))


def call_by_keywords(ctx, options):
    """Three iterations by keywords alone, and three without any argument: gradients, and what arrived."""
    told = []
    model = wrapped(ctx, Shaped(), **options)
    for times in (1, 2, 3):
        model.zero_grad()
        model(extra="named", x=mine(ctx, times), factor=2).sum().backward()
        told.append(whole(model.module.a.weight.grad).item())
    arrived = {(more, factor, *keywords.items()) for _, more, factor, keywords in model.module.called}
    model = wrapped(ctx, Unasked(), **options)
    for _ in range(3):
        model.zero_grad()
        model().sum().backward()
        told.append(whole(model.module.a.weight.grad).item())
    return told, arrived


def call_by_keywords_in_all_modes(ctx):
    return {name: call_by_keywords(ctx, options) for name, options in MODES.items()}


@check("DDP-036", "DDP-049", worlds=WORLDS, beyond=False)
def test_a_call_by_keywords_alone_or_without_any_argument_is_one_like_others(ranks):
    expected = [2 * mean_of_all(ranks.world, times) for times in (1, 2, 3)] + [12.0] * 3
    for told in ranks(call_by_keywords_in_all_modes):
        assert told == dict.fromkeys(MODES, (expected, {((), 2, ("extra", "named"))}))


def skeleton(value):
    """A structure with tensors written as numbers."""
    if isinstance(value, torch.Tensor):
        return value.flatten().tolist()
    if dataclasses.is_dataclass(value):
        return type(value).__name__, skeleton(vars(value))
    if isinstance(value, dict):
        return type(value).__name__, {key: skeleton(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value).__name__, [skeleton(item) for item in value]
    return value


def return_shapes(ctx, options):
    told = {}
    for name, shape in SHAPES.items():
        model = wrapped(ctx, Shaped(shape), **options)
        plain = Shaped(shape).to(ctx.device)
        told[name] = [(skeleton(model(mine(ctx))), skeleton(plain(mine(ctx)))) for _ in range(2)]
    return told


MODES = {
    "looking for unused parameters": {"find_unused_parameters": True},  # first: only then are they opened
    "plain": {},
    "static graph": {"static_graph": True},
}


@check("DDP-036", worlds=(1, 2), scenarios=MODES)
def test_outputs_come_back_with_the_same_structure(ranks, scenario):
    for told in ranks(return_shapes, scenario):
        for name, pairs in told.items():
            for through_ddp, plain in pairs:
                assert through_ddp == plain, name


# -- DDP-037: identity of the output


def compare_identity(ctx, options):
    told = {}
    for name, shape in SHAPES.items():
        model = wrapped(ctx, Shaped(shape), **options)
        same = []
        for _ in range(3):
            out = model(mine(ctx))
            same.append(out is model.module.returned)
            next(tensors(out)).sum().backward()
        told[name] = same
    return told


def tensors(value):
    if isinstance(value, torch.Tensor):
        yield value
    elif dataclasses.is_dataclass(value):
        yield value.value
    else:
        yield from tensors(next(iter(value.values() if isinstance(value, dict) else value)))


@check("DDP-037", worlds=(1, 2))
def test_the_very_same_output_is_returned_where_the_graph_is_left_alone(ranks):
    for told in ranks(compare_identity, {}):
        assert told == {name: [True] * 3 for name in SHAPES}
    for told in ranks(compare_identity, {"static_graph": True}):
        assert {name: same[1:] for name, same in told.items()} == {name: [True] * 2 for name in SHAPES}


def mix_outputs(ctx):
    marker = object()
    constant = torch.ones(2, device=ctx.device)
    model = wrapped(ctx, Shaped(lambda out: {"out": out, "constant": constant, "other": marker}),
                    find_unused_parameters=True)  # fmt: skip
    out = model(mine(ctx))
    kept = out["constant"] is constant and out["other"] is marker and model.module.returned["constant"] is constant
    out["out"].sum().backward()
    return kept, whole(model.module.a.weight.grad).flatten().tolist()


@check("DDP-037", worlds=(1, 2))
def test_outputs_without_a_graph_keep_their_identity_when_the_others_are_wrapped(ranks):
    assert ranks(mix_outputs) == [(True, [mean_of_all(ranks.world)])] * ranks.world


# -- DDP-038, DDP-039: a module like any other


def count_hooks(ctx):
    counts = collections.Counter()
    module = Shaped()
    module.register_forward_pre_hook(lambda *_: counts.update(["before"]))
    module.register_forward_hook(lambda *_: counts.update(["after"]))
    module.register_full_backward_hook(lambda *_: counts.update(["backward"]))
    model = wrapped(ctx, module)
    for _ in range(3):
        trained(model, mine(ctx))
    return dict(counts)


@check("DDP-038", worlds=(1, 2))
def test_hooks_on_the_wrapped_module_run_once_a_call(ranks):
    assert ranks(count_hooks) == [{"before": 3, "after": 3, "backward": 3}] * ranks.world


def switch_modes(ctx):
    model = wrapped(ctx, nn.Sequential(models.scalar(), nn.Sequential(nn.Dropout())))
    switches = (lambda: model.train(False), model.train, model.eval, lambda: model.train(True))
    return [(switch() is model, {module.training for module in model.modules()}) for switch in switches]


@check("DDP-039", worlds=(1,))
def test_train_and_eval_return_the_ddp_model_and_reach_every_module(ranks):
    assert ranks(switch_modes) == [[(True, {False}), (True, {True}), (True, {False}), (True, {True})]]


# -- DDP-040, DDP-041: attributes of the wrapped module


class Eager(nn.Module):
    """Has an attribute and a method of its own, and one called like one of DDP's."""

    def __init__(self):
        super().__init__()
        self.a = models.scalar()
        self.extra = 7
        self.config = {"hidden_size": 1}
        self.label = "the module's own"

    def forward(self, x):
        return self.a(x)

    def twice(self):
        return 2 * self.extra


def look_through(ctx):
    model = wrapped(ctx, Eager())
    missing = caught(getattr, model, "nothing_has_this")
    model.label = "the wrapper's"
    own = model.label, model.module.label
    same = model.module.a is getattr(model, "a", None)
    return caught(lambda: model.extra) or (model.extra, model.twice(), same, model.config), own, missing


@check("DDP-040", worlds=(1,))
def test_missing_attributes_come_from_the_wrapped_module(ranks):
    found, own, missing = ranks(look_through)[0]
    assert missing is not None
    assert missing.is_a(AttributeError), missing
    assert own == ("the wrapper's", "the module's own"), "an attribute that the wrapper has, too, is the wrapper's"
    assert found == (7, 14, True, {"hidden_size": 1})


class Colliding(models.Counting):
    """Bears names that an implementation may use, or look for, inside."""

    def __init__(self, step):
        super().__init__(step)
        for name in ("buffer_hook", "_buffer_hook", "logger", "reducer", "mixed_precision", "static_graph"):
            setattr(self, name, "the module's own")


def train_colliding(ctx):
    model = wrapped(ctx, Colliding(1.0 + 10 * ctx.rank))
    gradients = [trained(model, mine(ctx))["a.weight"] for _ in range(3)]
    return model.module.seen, gradients


@check("DDP-041", worlds=(1, 2, 3))
def test_names_of_the_wrapped_module_do_not_disturb_ddp(ranks):
    assert ranks(train_colliding) == [([0.0, 1.0, 2.0], [[mean_of_all(ranks.world)]] * 3)] * ranks.world
