"""The small parts of DDP: containers, the graph search, ignore lists, dense views, argument checks."""

from collections import OrderedDict, defaultdict, namedtuple
from dataclasses import dataclass, field

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from impl.comm.flat import dense_view
from impl.ddp import config as options
from impl.ddp import kernels, params
from impl.ddp.containers import find_tensors, map_tensors
from impl.ddp.graph import reachable_parameters

Pair = namedtuple("Pair", "left right")


@dataclass
class Box:
    value: torch.Tensor
    label: str


def test_tensors_are_found_and_replaced_in_every_kind_of_container():
    one = torch.ones(1)
    whole = {"a": [one, (one, 3)], "b": Pair(one, "x"), "c": Box(one, "y"), "d": OrderedDict(k=one)}
    assert len(find_tensors(whole)) == 5
    doubled = map_tensors(lambda tensor: tensor * 2, whole)
    assert [tensor.item() for tensor in find_tensors(doubled)] == [2.0] * 5
    assert isinstance(doubled["b"], Pair)
    assert doubled["c"].label == "y"
    assert isinstance(doubled["d"], OrderedDict)


def in_a_circle(parts):
    """So many containers of different kinds, each inside the one before and the first inside the last."""
    whole = {"tensor": torch.ones(1)}
    at = whole
    for part in range(parts - 1):
        inside = {} if part % 2 else []
        at.append(inside) if isinstance(at, list) else at.update(more=inside)
        at = inside
    at.append(whole) if isinstance(at, list) else at.update(more=whole)
    return whole


@pytest.mark.parametrize("parts", [1, 2, 3, 4])
def test_containers_that_hold_each_other_are_gone_through_once(parts):
    whole = in_a_circle(parts)
    assert find_tensors(whole) == [whole["tensor"]]
    changed = map_tensors(torch.neg, whole)
    assert changed["tensor"].item() == -1.0
    assert -1.0 in [tensor.item() for tensor in find_tensors(changed)]


def test_dicts_with_constructors_of_their_own_survive():
    mapping = defaultdict(list, a=torch.ones(1))
    assert isinstance(map_tensors(torch.neg, mapping), defaultdict)


class Attributes(dict):
    """Items as attributes, and no way to be made from a dict."""

    def __init__(self, **items):
        super().__init__(**items)
        self.__dict__.update(items)


class Wants(OrderedDict):
    def __init__(self, first, second):
        super().__init__(first=first, second=second)


@dataclass(frozen=True)
class Derived:
    value: torch.Tensor
    twice: torch.Tensor = field(init=False)
    label: torch.Tensor

    def __post_init__(self):
        object.__setattr__(self, "twice", self.value * 2)


def test_classes_of_the_users_own_survive():
    one, two = torch.ones(1), torch.full((1,), 2.0)
    items = map_tensors(torch.neg, Attributes(loss=one, count=3))
    assert type(items) is Attributes
    assert (items["loss"].item(), items.loss.item(), items.count) == (-1.0, -1.0, 3)
    refuses = Wants(one, two)
    assert map_tensors(torch.neg, refuses) is refuses
    packed = nn.utils.rnn.pack_sequence([two])
    assert map_tensors(torch.neg, packed).data.item() == -2.0
    moved = map_tensors(lambda tensor: tensor.to("meta"), packed)
    assert (moved.data.device.type, moved.batch_sizes.tolist()) == ("meta", [1])
    derived = map_tensors(torch.neg, Derived(one, two))
    assert (derived.value.item(), derived.twice.item(), derived.label.item()) == (-1.0, -2.0, -2.0)


class Known(list):
    """Has attributes besides its items."""


class KnownPair(tuple):
    """Likewise."""


@pytest.mark.parametrize("kind", [Known, KnownPair])
def test_attributes_come_along_and_those_that_are_items_stay_items(kind):
    one = torch.ones(1)
    original = kind([one, 3])
    original.words, original.first = "words", one
    changed = map_tensors(torch.neg, original)
    assert type(changed) is kind
    assert (changed[0].item(), changed[1], changed.words) == (-1.0, 3, "words")
    assert changed.first is changed[0]
    assert original.first is original[0] is one


class Fussy(tuple):
    __slots__ = ()

    def __new__(cls, pair):
        return super().__new__(cls, pair.parts)


@dataclass
class Stubborn:
    value: torch.Tensor

    def __copy__(self):
        raise ValueError


def test_what_cannot_be_made_anew_is_passed_through_whatever_its_class_raises():
    for each in (tuple.__new__(Fussy, (torch.ones(1),)), Stubborn(torch.ones(1))):
        assert map_tensors(torch.neg, each) is each


def test_a_container_in_which_nothing_changes_stays_the_one_that_it_is():
    same, notes, log = torch.ones(1), [], {"n": 1}
    whole = {"a": [same, notes], "b": log, "c": Box(same, "x"), "d": Pair(same, 1), "e": torch.zeros(1)}
    changed = map_tensors(lambda tensor: tensor if tensor is same else -tensor, whole)
    assert changed is not whole
    assert all(changed[name] is whole[name] for name in "abcd")


def test_what_is_no_container_is_passed_through_as_it_is():
    opaque = object()
    assert map_tensors(torch.neg, opaque) is opaque
    assert find_tensors(opaque) == []


def test_only_parameters_in_the_graph_are_reached():
    a, b = nn.Linear(2, 2), nn.Linear(2, 2)
    index_of = {p: i for i, p in enumerate([*a.parameters(), *b.parameters()])}
    assert reachable_parameters([a(torch.ones(1, 2))], index_of) == {0, 1}
    assert reachable_parameters([b(a(torch.ones(1, 2)))], index_of) == {0, 1, 2, 3}
    assert reachable_parameters([torch.ones(1)], index_of) == set()


def test_a_deep_graph_is_searched_without_recursion():
    weight = nn.Parameter(torch.ones(1))
    value = weight * 1
    for _ in range(5000):
        value = value + 1
    assert reachable_parameters([value], {weight: 0}) == {0}


@pytest.mark.parametrize("name", ["weight", ".weight"])
def test_a_root_level_name_is_ignored_in_either_spelling(name):
    layer = nn.Linear(1, 1)
    params.ignore(layer, [name, "no such name"])
    ignored = params.ignored_names(layer)
    assert [m.name for m in params.managed_parameters(layer, ignored)] == ["bias"]
    assert layer.weight._ddp_ignored


def test_a_shared_tensor_ignored_under_one_name_is_ignored_under_all():
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    model[1].weight = model[0].weight
    params.ignore(model, ["1.weight"])
    assert params.managed_parameters(model, params.ignored_names(model)) == []


@given(st.permutations([0, 1, 2, 3]))
def test_a_dense_view_has_the_parameters_strides(order):
    parameter = torch.arange(2 * 3 * 4 * 5).view(2, 3, 4, 5).permute(order)
    flat = torch.zeros(200)
    view = dense_view(flat, 7, parameter)
    assert (view.shape, view.stride()) == (parameter.shape, parameter.stride())
    view.copy_(parameter)
    assert flat[:7].count_nonzero() == 0
    assert sorted(flat[7:127].tolist()) == list(range(120))


def test_an_overlapping_parameter_gets_a_contiguous_view():
    parameter = torch.zeros(1).expand(4)
    assert dense_view(torch.zeros(8), 2, parameter).stride() == (1,)


@given(st.integers(1, 64), st.lists(st.integers(-1000, 1000), min_size=1, max_size=20))
def test_division_is_division_whatever_the_divisor(divisor, values):
    flat = torch.tensor(values, dtype=torch.float32)
    expected = flat / divisor
    kernels.divide(flat, divisor)
    assert torch.equal(flat, expected)


def test_the_newer_buffer_argument_wins():
    assert options.syncs_buffers_in_forward(None, None) is True
    assert options.syncs_buffers_in_forward(False, None) is False
    assert options.syncs_buffers_in_forward(True, False) is False


@pytest.mark.parametrize(
    ("arguments", "kind", "words"),
    [
        ({"device_ids": [0, 1]}, ValueError, "single element"),
        ({"device_ids": [0]}, ValueError, "single-device"),
        ({"output_device": 0}, ValueError, "single-device"),
    ],
)
def test_devices_that_do_not_fit_a_cpu_module_are_refused(arguments, kind, words):
    layer = nn.Linear(1, 1)
    given_arguments = {"device_ids": None, "output_device": None, **arguments}
    with pytest.raises(kind, match=words):
        options.place(layer, list(layer.parameters()), [], **given_arguments)


def test_a_model_with_nothing_to_train_is_refused():
    with pytest.raises(RuntimeError, match="require a gradient"):
        options.place(nn.ReLU(), [], [], None, None)


def test_what_is_ignored_under_one_of_its_names_is_ignored_under_all_of_them():
    for name in ("0.count", "2.count", "0.weight", "2.weight"):
        first, between, second = nn.Linear(1, 1), nn.Linear(1, 1), nn.Linear(1, 1)
        for layer in (first, between, second):
            layer.register_buffer("count", torch.zeros(1))
        second.weight, second.count = first.weight, first.count
        model, kind = nn.Sequential(first, between, second), name[2:]
        params.ignore(model, [name])
        assert params.ignored_names(model) == {f"0.{kind}", f"2.{kind}"}
        marked = [each for each in (*model.parameters(), *model.buffers()) if getattr(each, "_ddp_ignored", False)]
        assert [id(each) for each in marked] == [id(getattr(first, kind))]
