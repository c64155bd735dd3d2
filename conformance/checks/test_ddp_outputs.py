"""Outputs that pass through DDP's own graph node: changed in place, left out of the loss, or wrapped in an RRef."""

import itertools
from collections import OrderedDict, defaultdict, namedtuple
from dataclasses import dataclass, field
from typing import Any

from torch import nn
from torch.distributed import rpc

from conformance.api.checking import check
from conformance.fixtures import models
from conformance.fixtures.observing import assert_refused, mean_of_all, mine, trained, wrapped
from conformance.fixtures.rpc import remote_calls
from conformance.fixtures.training import gradient, gradients, private, scalar_means
from conformance.ranks import caught

MODES = {
    "looking for unused parameters": {"find_unused_parameters": True},
    "static graph": {"static_graph": True},
}

# -- DDP-112, DDP-113: in-place changes


class Flat(models.Branches):
    """Its output is a view."""

    def forward(self, x):
        return super().forward(x).view(-1)


def change_in_place(ctx, options):
    seen = []
    for kind in (models.Branches, Flat):
        model = wrapped(ctx, kind(), **options)
        for _ in range(4):
            model.zero_grad()
            out = model(mine(ctx))
            out.mul_(2)
            loss = out.sum()
            loss *= 3
            loss.backward()
            seen.append((gradient(model.module.a.weight), model.module.b.weight.grad is None))
    return seen


@check("DDP-112", scenarios=MODES)
def test_outputs_may_be_changed_in_place(ranks, scenario):
    assert ranks(change_in_place, scenario) == [[(6 * mean_of_all(ranks.world), True)] * 8] * ranks.world


def change_some_in_place(ctx, options):
    """Of two outputs in containers one is changed in place, then the other, then both; and an input of the loss."""
    model = wrapped(ctx, Both(), **options)
    seen = []
    for changed in ("left", "right", ("left", "right")):
        model.zero_grad(set_to_none=True)
        out = model(mine(ctx))
        values = {"left": out["left"], "right": out["more"][0]}
        for name in changed if isinstance(changed, tuple) else (changed,):
            values[name].mul_(2).add_(1)
        (values["left"] + values["right"]).sum().backward()
        seen.append((gradient(model.module.a.weight), gradient(model.module.b.weight)))
    return seen


class Both(models.Branches):
    """Returns the outputs of both layers in containers; they share nothing but the input."""

    def forward(self, x):
        return {"left": self.a(x), "more": [self.b(x), "words"]}


@check("DDP-112", worlds=(1, 2, 3), scenarios=MODES)
def test_each_of_several_outputs_in_containers_may_be_changed_in_place(ranks, scenario):
    mean = mean_of_all(ranks.world)
    expected = [(2 * mean, mean), (mean, 2 * mean), (2 * mean, 2 * mean)]
    assert ranks(change_some_in_place, scenario) == [expected] * ranks.world


def forbid_in_place(ctx, options):
    def build():
        model = wrapped(ctx, models.Branches(), **options)
        private(model, "_set_ddp_sink_clone")(False)
        return model

    model = build()
    unchanged = [trained(model, mine(ctx))["a.weight"] for _ in range(3)]
    model = build()
    out = model(mine(ctx))
    error = caught(lambda: out.mul_(2).sum().backward())
    model = build()
    model._set_ddp_sink_clone(True)
    out = model(mine(ctx))
    out.mul_(2).sum().backward()
    return unchanged, error, gradient(model.module.a.weight)


@check("DDP-113", scenarios=MODES)
def test_without_clones_results_are_the_same_and_in_place_changes_are_refused(ranks, scenario):
    told = ranks(forbid_in_place, scenario)
    for unchanged, _, switched_on_again in told:
        assert unchanged == [[mean_of_all(ranks.world)]] * 3
        assert switched_on_again == 2 * mean_of_all(ranks.world)
    assert_refused([error for _, error, _ in told], RuntimeError, "view", "inplace")


# -- DDP-037: outputs that nobody can look into


class Answering(nn.Module):
    """Returns the output of one layer, or of both, in a container."""

    def __init__(self, put, everything=False):
        super().__init__()
        self.a, self.b = models.scalar(), models.scalar()
        self.put, self.everything = put, everything

    def forward(self, x):
        return self.put(self.a(x) + self.b(x) if self.everything else self.a(x))


def answer_opaquely(ctx, options):
    model = wrapped(ctx, Answering(models.Opaque, everything=True), **options)
    told = []
    for iteration in range(1, 5):
        model.zero_grad()
        out = model(mine(ctx, iteration))
        out.value.sum().backward()
        told.append((type(out).__name__, gradient(model.module.a.weight), gradient(model.module.b.weight)))
    return told


@check("DDP-037", "DDP-049", scenarios={"one bucket": {}, "several buckets": {"bucket_cap_mb": 1e-6}})
def test_outputs_in_an_object_of_ones_own_do_not_keep_gradients_from_the_mean(ranks, scenario):
    means = [mean_of_all(ranks.world, iteration) for iteration in range(1, 5)]
    assert ranks(answer_opaquely, scenario) == [[("Opaque", mean, mean) for mean in means]] * ranks.world


# -- DDP-102: containers of a user's own class


class Answers(OrderedDict):
    """Outputs by name, as attributes too, as libraries of models return them."""

    def __getattr__(self, name):
        return self[name]


KINDS = {
    "a dictionary of one's own class": lambda out: Answers(value=out, more=[out + 1]),
    "an ordered dictionary": lambda out: OrderedDict(value=out, more=[out + 1]),
    "a dictionary with a default": lambda out: defaultdict(list, value=out, more=[out + 1]),
}


def answer_in(ctx, kind):
    model = wrapped(ctx, Answering(KINDS[kind]), find_unused_parameters=True)
    told = []
    for _ in range(2):
        model.zero_grad()
        out = model(mine(ctx))
        (out["value"] + out["more"][0]).sum().backward()
        used, unused = model.module.a.weight, model.module.b.weight
        told.append((type(out).__name__, list(out), gradient(used), unused.grad is None))
    return told


@check("DDP-102", "DDP-036", scenarios={kind: kind for kind in KINDS})
def test_dictionaries_of_any_class_are_searched_and_come_back_as_they_were(ranks, scenario):
    name = type(KINDS[scenario](0)).__name__
    expected = (name, ["value", "more"], 2 * mean_of_all(ranks.world), True)
    assert ranks(answer_in, scenario) == [[expected] * 2] * ranks.world


# -- DDP-112: outputs that backward needs, in containers

Named = namedtuple("Named", ["value", "words"])


class Items(OrderedDict):
    """Items that are attributes, too, and stay what they were when one is replaced: as those of a model's output."""

    def __init__(self, **items):
        super().__init__(items)
        self.__dict__.update(items)


class Listed(list):
    """A list of a user's own class."""


class Wanting(tuple):
    """A tuple whose constructor cannot be called with its items alone."""

    __slots__ = ()

    def __new__(cls, items, more):
        return super().__new__(cls, items)


@dataclass
class Record:
    """A dataclass."""

    value: Any
    words: str = "words"


@dataclass(frozen=True, slots=True)
class Frozen:
    """One that takes no assignment, and has no ``__dict__``."""

    value: Any


@dataclass
class Late:
    """One that is given its value after it was built."""

    value: Any = field(init=False)
    words: str = "words"

    @staticmethod
    def of(value):
        made = Late()
        made.value = value
        return made


PLAIN = {
    "bare": (lambda out: out, lambda held: held),
    "in a list": (lambda out: [out, 1], lambda held: held[0]),
    "in a tuple": (lambda out: ("words", out), lambda held: held[1]),
    "in a named tuple": (lambda out: Named(out, "words"), lambda held: held.value),
    "in a dictionary": (lambda out: {"value": out}, lambda held: held["value"]),
    "in an ordered dictionary": (lambda out: OrderedDict(value=out), lambda held: held["value"]),
    "in containers of containers": (lambda out: {"deep": [(out,), None]}, lambda held: held["deep"][0][0]),
}
OWN = {
    "in a dataclass": (Record, lambda held: held.value),
    "in a frozen dataclass": (lambda out: [Frozen(out)], lambda held: held[0].value),
    "in a field that no constructor takes": (Late.of, lambda held: held.value),
    "as an item of a model's output": (lambda out: Items(value=out), lambda held: held["value"]),
    "as an attribute of a model's output": (lambda out: Items(value=out), lambda held: held.value),
    "in a list of one's own class": (lambda out: Listed([out]), lambda held: held[0]),
}


class Saving(nn.Module):
    """Its backward needs the value that it returns, which is 1."""

    def __init__(self, put):
        super().__init__()
        self.a, self.b = models.scalar(0.0), models.scalar()
        self.put = put

    def forward(self, x):
        return self.put(self.a(x).exp())


def change_what_backward_needs(ctx, kinds):
    told = {}
    ways = itertools.product((PLAIN if kinds == "plain" else OWN).items(), MODES.items())
    for (kind, (put, take)), (mode, options) in ways:
        model = wrapped(ctx, Saving(put), **options)
        held = model(mine(ctx))
        taken = take(held)
        error = caught(lambda taken=taken: taken.mul_(2).sum().backward())
        same_class = type(held) is type(put(taken))
        told[kind, mode] = error, same_class, model.module.a.weight.grad, model.module.b.weight.grad is None
    return told


def stays_legal(ranks, kinds):
    for told in ranks(change_what_backward_needs, kinds):
        for kind, (error, same_class, found, unused) in told.items():
            assert error is None, f"{kind}: {error}"
            assert same_class, f"{kind}: it came back in another class"
            assert found.tolist() == [[2 * mean_of_all(ranks.world)]], kind
            assert unused, kind


@check("DDP-112", "DDP-102", worlds=(1, 2, 3), beyond=False)
def test_an_output_that_backward_needs_may_be_changed_in_place(ranks):
    stays_legal(ranks, "plain")


def train_static_on_each_kind(ctx):
    told = {}
    for kind, (put, take) in {**PLAIN, **OWN}.items():
        model = wrapped(ctx, Saving(put), static_graph=True)
        seen = []
        for _ in range(2):
            model.zero_grad()
            take(model(mine(ctx))).sum().backward()
            seen.append(gradient(model.module.a.weight))
        told[kind] = seen
    return told


@check("DDP-110", "DDP-102", worlds=(2, 3), beyond=False)
def test_a_static_graph_is_averaged_from_its_first_iteration_on_whatever_holds_its_outputs(ranks):
    for told in ranks(train_static_on_each_kind):
        for kind, seen in told.items():
            assert seen == [mean_of_all(ranks.world)] * 2, kind


@check("DDP-112", "DDP-102", worlds=(1, 2, 3), beyond=False)
def test_an_output_that_backward_needs_may_be_changed_in_place_in_dataclasses_and_classes_of_ones_own(ranks):
    stays_legal(ranks, "own")


class Refusing(dict):
    """A dictionary that cannot be copied."""

    def __copy__(self):
        raise TypeError("this one stays as it is")


class Closed(dict):
    """A dictionary whose items stay what they were when it was made."""

    def __setitem__(self, key, value):
        raise NotImplementedError("this one stays as it is")


class Picky(tuple):
    """A tuple whose constructor takes what it is made from apart."""

    __slots__ = ()

    def __new__(cls, pair):
        return super().__new__(cls, pair.parts)


@dataclass
class Stubborn:
    """A dataclass that cannot be copied."""

    value: Any

    def __copy__(self):
        raise ValueError("this one stays as it is")


def answer_in_what_cannot_be_copied(ctx):
    told = []
    for put, take in (
        (lambda out: Wanting((out,), 1), lambda held: held[0]),
        (lambda out: tuple.__new__(Picky, (out,)), lambda held: held[0]),
        (Stubborn, lambda held: held.value),
        (lambda out: Refusing(value=out), lambda held: held["value"]),
        (lambda out: Closed(value=out), lambda held: held["value"]),
        (lambda out: Listed([1, "words", None]), None),
    ):
        model = wrapped(ctx, Answering(put), find_unused_parameters=True)
        held = model(mine(ctx))
        if take is not None:
            take(held).sum().backward()
            told.append((type(held).__name__, gradient(model.module.a.weight), model.module.b.weight.grad is None))
        else:
            told.append((type(held).__name__, list(held), True))
    return told


@check("DDP-102", "DDP-036", worlds=(1, 2, 3), beyond=False)
def test_an_output_in_a_container_that_cannot_be_made_anew_is_averaged_all_the_same(ranks):
    mean = mean_of_all(ranks.world)
    expected = [(name, mean, True) for name in ("Wanting", "Picky", "Stubborn", "Refusing", "Closed")]
    expected.append(("Listed", [1, "words", None], True))
    assert ranks(answer_in_what_cannot_be_copied) == [expected] * ranks.world


class Annotated(list):
    """A list that knows more than its items."""


class AnnotatedPair(tuple):
    """Likewise a tuple."""


def answer_with_more(ctx):
    """By class: what comes back besides the items, and whether an attribute that was an item still is; the gradient."""
    told = {}
    for kind in (Annotated, AnnotatedPair):

        def put(out, kind=kind):
            made = kind([out, 1])
            made.words, made.first = "words", out
            return made

        model = wrapped(ctx, Answering(put), find_unused_parameters=True)
        held = model(mine(ctx))
        held[0].sum().backward()
        known = type(held).__name__, getattr(held, "words", None), getattr(held, "first", None) is held[0]
        told[kind.__name__] = known, gradient(model.module.a.weight)
    return told


@check("DDP-036", "DDP-102", worlds=(1, 2, 3), beyond=False)
def test_what_an_output_of_ones_own_class_knows_besides_its_items_comes_back_too(ranks):
    for told in ranks(answer_with_more):
        for kind, (known, found) in told.items():
            assert known == (kind, "words", True)
            assert found == mean_of_all(ranks.world), kind


# -- DDP-115: RRefs


class Referring(nn.Module):
    """Returns its output inside an RRef, beside a layer that is not used."""

    def __init__(self):
        super().__init__()
        self.a, self.b = models.scalar(), models.scalar()

    def forward(self, x):
        return {"ref": rpc.RRef(self.a(x)), "plain": 3}


def return_references(ctx):
    with remote_calls(ctx):
        model = wrapped(ctx, Referring(), find_unused_parameters=True)
        seen = []
        for _ in range(2):
            model.zero_grad()
            out = model(mine(ctx))
            out["ref"].local_value().sum().backward()
            kinds = isinstance(out["ref"], rpc.RRef), out["plain"]
            seen.append((kinds, gradient(model.module.a.weight), model.module.b.weight.grad is None))
        return seen


@check("DDP-115", "DDP-102", worlds=(2,), backends=("gloo",))
def test_an_output_in_an_rref_comes_back_in_an_rref(ranks):
    assert ranks(return_references) == [[((True, 3), mean_of_all(2), True)] * 2] * 2


# -- DDP-102: a dataclass whose fields are not all set


@dataclass
class Sparing:
    """One whose fields are set as far as they are wanted."""

    value: Any = field(init=False)
    more: Any = field(init=False)

    @staticmethod
    def of(value):
        made = Sparing()
        made.value = value
        return made


def leave_a_field_unset(ctx):
    told = []
    for options in MODES.values():
        model = wrapped(ctx, Answering(Sparing.of), **options)
        for _ in range(3):
            model.zero_grad()
            out = model(mine(ctx))
            out.value.sum().backward()
            set_here = [name for name in ("value", "more") if hasattr(out, name)]
            told.append((set_here, gradient(model.module.a.weight), model.module.b.weight.grad is None))
    return told


@check("DDP-102", worlds=(1, 2, 3), beyond=False)
def test_a_field_that_a_forward_leaves_unset_stays_unset_and_the_others_are_searched(ranks):
    assert ranks(leave_a_field_unset) == [[(["value"], mean_of_all(ranks.world), True)] * 6] * ranks.world


# -- DDP-102: sequences of different lengths, and an object in which nothing is to be found


@dataclass
class Notes:
    """What a model keeps from forward to forward, and shows."""

    forwards: int = 0


class Packing(nn.Module):
    """Hands out packed sequences and its notes."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.notes = models.scalar(), models.scalar(), Notes()

    def forward(self, x):
        self.notes.forwards += 1
        packed = nn.utils.rnn.pack_sequence([self.a(x.expand(2, 1)), self.a(x)])
        return {"packed": packed, "notes": self.notes}


def pack(ctx):
    told = []
    for options in MODES.values():
        model = wrapped(ctx, Packing(), **options)
        for _ in range(3):
            model.zero_grad()
            out = model(mine(ctx))
            out["notes"].forwards += 10
            out["packed"].data.sum().backward()
            told.append((out["packed"].batch_sizes.tolist(), model.module.notes.forwards, gradients(model)))
    return told


@check("DDP-102", worlds=(1, 2, 3), beyond=False)
def test_packed_sequences_are_searched_and_what_holds_no_output_comes_back_as_the_same_object(ranks):
    expected = {"a.weight": [3 * mean_of_all(ranks.world)], "b.weight": None}
    assert ranks(pack) == [[([2, 1], 11 * count, expected) for count in (1, 2, 3)] * 2] * ranks.world


# -- DDP-101, DDP-105: an argument that is handed out as it was


class HandingOn(nn.Module):
    """Returns its argument, and what a layer makes of it."""

    def __init__(self):
        super().__init__()
        self.a = models.scalar()

    def forward(self, x):
        return {"given": x, "made": self.a(x)}


def hand_on(ctx, ways):
    """What comes in has a graph of its own, and a part of the loss depends on nothing else."""
    found = []
    for options in ways:
        model, before = wrapped(ctx, HandingOn(), **options), models.scalar().to(ctx.device)
        for iteration in range(3):
            model.zero_grad()
            given = before(models.divisible_scalar(ctx.rank, iteration).to(ctx.device))
            out = model(x=given) if iteration % 2 else model(given)
            out["given"].sum().backward(retain_graph=True)
            out["made"].sum().backward()
            found.append(gradient(model.module.a.weight))
    return found


@check("DDP-049", worlds=(2, 3), beyond=False)
def test_an_argument_that_is_handed_out_tells_of_no_backward(ranks):
    ways = [{"gradient_as_bucket_view": views} for views in (False, True)]
    assert ranks(hand_on, ways) == [scalar_means((3,) * ranks.world) * len(ways)] * ranks.world


@check("DDP-101", worlds=(2, 3), beyond=False)
def test_where_use_is_searched_too_an_argument_that_is_handed_out_tells_of_no_backward(ranks):
    modes = ("find_unused_parameters", "static_graph")
    ways = [{mode: True, "gradient_as_bucket_view": views} for mode in modes for views in (False, True)]
    assert ranks(hand_on, ways) == [scalar_means((3,) * ranks.world) * len(ways)] * ranks.world


class HandingOnDeep(HandingOn):
    """The same of an argument inside containers."""

    def forward(self, x):
        return {"given": x, "made": self.a(x["deep"][0]["x"])}


def hand_on_deep(ctx, ways):
    """A part of the loss depends on nothing but what the argument holds."""
    found = []
    for options in ways:
        model, before = wrapped(ctx, HandingOnDeep(), **options), models.scalar().to(ctx.device)
        for iteration in range(3):
            model.zero_grad()
            given = before(models.divisible_scalar(ctx.rank, iteration).to(ctx.device))
            out = model({"deep": [{"x": given}]})
            given.sum().backward(retain_graph=True)
            out["made"].sum().backward()
            found.append(gradient(model.module.a.weight))
    return found


@check("DDP-101", worlds=(2, 3), beyond=False)
def test_an_argument_that_is_handed_out_deep_in_containers_tells_of_no_backward(ranks):
    ways = [{}, {"find_unused_parameters": True}, {"static_graph": True}]
    assert ranks(hand_on_deep, ways) == [scalar_means((3,) * ranks.world) * len(ways)] * ranks.world
