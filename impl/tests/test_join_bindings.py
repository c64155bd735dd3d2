"""Bindings: what contexts put on joinables, nested or not, and how all of it comes off again."""

import copy
import pickle

import pytest
import torch

from impl import DistributedDataParallel
from impl.join import Join
from impl.join.bindings import Binding
from impl.join.hooks import Joinable, JoinHook, _JoinConfig

OFF = _JoinConfig.construct_disabled_join_config()


class Thing(Joinable):
    def __init__(self):
        super().__init__()

    def join_hook(self, **kwargs):
        return JoinHook()

    @property
    def join_device(self):
        raise AssertionError("not asked for")

    @property
    def join_process_group(self):
        raise AssertionError("not asked for")


class Bound:
    """What a context puts on some things, as ``Join`` does."""

    def __init__(self, things, session, enable=True, throw=False):
        self.bindings = [
            Binding(thing, _JoinConfig(enable, throw, place == 0), session) for place, thing in enumerate(things)
        ]
        for binding in self.bindings:
            binding.put()

    def open(self):
        for binding in self.bindings:
            binding.open()

    def take_off(self):
        for binding in self.bindings:
            binding.take_off()


def state(thing):
    return thing._join_config, thing._join_session


def test_what_was_bound_comes_off():
    thing = Thing()
    bindings = Bound([thing], "s")
    bindings.open()
    bindings.take_off()
    assert state(thing) == (OFF, None)


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_nested_contexts_bring_back_the_one_around_them(depth):
    thing = Thing()
    stack, seen = [], []
    for level in range(depth):
        stack.append(Bound([thing], level, enable=level % 2 == 0, throw=level == 1))
        stack[-1].open()
        seen.append(state(thing))
    while stack:
        assert state(thing) == seen.pop()
        stack.pop().take_off()
    assert state(thing) == (OFF, None)


def test_a_context_that_was_built_but_never_entered_does_not_come_back():
    thing = Thing()
    Bound([thing], "never entered")
    inner = Bound([thing], "inner")
    inner.open()
    inner.take_off()
    assert state(thing) == (OFF, None)


def test_a_context_built_outside_but_entered_inside_another_brings_the_other_back():
    thing = Thing()
    inner = Bound([thing], "inner")
    outer = Bound([thing], "outer")
    outer.open()
    inner.open()
    assert state(thing)[1] == "inner"
    inner.take_off()
    assert state(thing)[1] == "outer"
    outer.take_off()
    assert state(thing) == (OFF, None)


def test_contexts_left_in_the_wrong_order_still_leave_nothing_behind():
    thing = Thing()
    outer, inner = Bound([thing], "outer"), None
    outer.open()
    inner = Bound([thing], "inner")
    inner.open()
    outer.take_off()
    assert state(thing)[1] == "inner"
    inner.take_off()
    assert state(thing) == (OFF, None)


def test_a_context_built_inside_another_and_not_entered_goes_with_the_other():
    thing = Thing()
    outer = Bound([thing], "outer")
    outer.open()
    Bound([thing], "only built")
    outer.take_off()
    assert state(thing) == (OFF, None)


def test_contexts_over_different_things_overlap_freely():
    one, both = Thing(), Thing()
    outer = Bound([one, both], "outer")
    outer.open()
    inner = Bound([both], "inner")
    inner.open()
    assert (state(one)[1], state(both)[1]) == ("outer", "inner")
    assert state(both)[0].is_first_joinable
    inner.take_off()
    assert (state(one)[1], state(both)[1]) == ("outer", "outer")
    assert not state(both)[0].is_first_joinable
    outer.take_off()
    assert state(one) == state(both) == (OFF, None)


class Bare(Thing):
    join_device = torch.device("cpu")
    join_process_group = None


@pytest.mark.usefixtures("alone")
def test_the_first_of_the_list_and_only_it_is_marked_first():
    things = [Bare(), Bare(), Bare()]
    Join(things, throw_on_early_termination=True)
    assert [thing._join_config for thing in things] == [(True, True, place == 0) for place in range(3)]


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda thing: pickle.loads(pickle.dumps(thing))])
def test_a_copy_that_is_made_inside_a_block_is_bound_by_no_context(copied):
    thing = Bare()
    with Join([thing]):
        Join.notify_join_context(thing)
        other = copied(thing)
    assert other._join_session is None
    assert not any(other._join_bindings)


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda thing: pickle.loads(pickle.dumps(thing))])
def test_a_copy_that_is_made_inside_a_followed_block_notifies_nobody(copied):
    thing, model = Bare(), DistributedDataParallel(torch.nn.Linear(1, 1))
    with Join([thing, model]):
        other = copied(thing)
        assert Join.notify_join_context(other) is None
        assert Join.notify_join_context(thing) is not None
    assert other._join_config == OFF
